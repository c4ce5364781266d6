package main

import "testing"

func TestLowerTakesOutWhatTheMachineRefuses(t *testing.T) {
	for name, test := range map[string]struct{ in, want string }{
		"of a container": {
			in:   `{"process":{"capabilities":{"bounding":["CAP_CHOWN","CAP_SYS_RESOURCE"]},"oomScoreAdj":-500,"rlimits":[{"type":"RLIMIT_NOFILE"}]},"size":12345678901234567}`,
			want: `{"process":{"capabilities":{"bounding":["CAP_CHOWN"]}},"size":12345678901234567}`,
		},
		"of a process to start in a container": {
			in:   `{"capabilities":{"effective":["CAP_SYS_RESOURCE"]},"oomScoreAdj":100}`,
			want: `{"capabilities":{"effective":[]},"oomScoreAdj":100}`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := lower([]byte(test.in))
			if err != nil || string(got) != test.want {
				t.Errorf("got %s (%v), want %s", got, err, test.want)
			}
		})
	}
}

func TestDescriptionIsFoundOnTheCommandLine(t *testing.T) {
	for want, args := range map[string][]string{
		"/b/config.json": {"--root", "/r", "create", "--bundle", "/b", "id"},
		"/c/config.json": {"run", "--bundle=/c", "id"},
		"/p.json":        {"--log", "l", "exec", "--process", "/p.json", "id"},
		"":               {"state", "id"},
	} {
		if got := description(args); got != want {
			t.Errorf("%v: got %q, want %q", args, got, want)
		}
	}
}
