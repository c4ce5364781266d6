package dockerfleet

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
)

const patience = 10 * time.Second

// fakeDocker keeps the commands that it was given.
type fakeDocker struct {
	mu    sync.Mutex
	calls []string
	// exits are the exit codes that waiting for a container returns, one after
	// the other. Without one it waits.
	exits chan string
	// files are what copying a place out of a container yields.
	files map[string][]byte
}

func newFakeDocker() *fakeDocker {
	return &fakeDocker{exits: make(chan string), files: map[string][]byte{}}
}

// Docker implements Docker.
func (d *fakeDocker) Docker(ctx context.Context, args ...string) ([]byte, error) {
	if args[0] == "wait" {
		select {
		case code := <-d.exits:
			return []byte(code + "\n"), nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.calls = append(d.calls, strings.Join(args, " "))
	if args[0] == "cp" && args[2] == "-" {
		_, place, _ := strings.Cut(args[1], ":")
		if content, ok := d.files[place]; ok {
			return content, nil
		}
		return nil, errors.New("exit status 1: Error: No such container:path: " + args[1])
	}
	return nil, nil
}

// Logs implements Docker.
func (d *fakeDocker) Logs(_ context.Context, container string) ([]byte, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.calls = append(d.calls, "logs "+container)
	return []byte("console of " + container + "\n"), nil
}

// verbs are the commands so far, without their arguments.
func (d *fakeDocker) verbs() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	var verbs []string
	for _, call := range d.calls {
		verb, _, _ := strings.Cut(call, " ")
		verbs = append(verbs, verb)
	}
	return verbs
}

func newTestFleet(t *testing.T, docker Docker) *Fleet {
	t.Helper()
	f := New(t.Context(), Options{
		Docker: docker, Image: "talos", Label: "run=test", Network: "test", Subnet: netip.MustParsePrefix("172.30.7.0/24"),
	})
	t.Cleanup(func() { NewWithT(t).Expect(f.Close(context.WithoutCancel(t.Context()))).To(Succeed()) })
	return f
}

// boot adds a machine without waiting for its Talos.
func boot(t *testing.T, f *Fleet) *machine {
	t.Helper()
	g := NewWithT(t)
	m := newMachine(f, len(f.machines)+1)
	g.Expect(m.create(t.Context())).To(Succeed())
	f.take(m)
	return m
}

// TestAMachineHasASecondLink: also after it was wiped.
func TestAMachineHasASecondLink(t *testing.T) {
	g, docker := NewWithT(t), newFakeDocker()
	f := newTestFleet(t, docker)
	m := newMachine(f, 3)
	m.wiring.Second = Link{Network: "storage", Subnet: netip.MustParsePrefix("172.30.8.0/24")}
	g.Expect(m.create(t.Context())).To(Succeed())
	f.take(m)
	docker.exits <- exitPowerOff
	const connect = "network connect --ip 172.30.8.4 storage test-host-3"
	g.Eventually(func() int {
		docker.mu.Lock()
		defer docker.mu.Unlock()
		return strings.Count(strings.Join(docker.calls, "\n"), connect)
	}).WithTimeout(patience).Should(Equal(2))
}

// TestAMachineWithoutANetworkOfPods: the cluster brings one, with a CNI of its own.
func TestAMachineWithoutANetworkOfPods(t *testing.T) {
	g, docker := NewWithT(t), newFakeDocker()
	f := newTestFleet(t, docker)
	m := newMachine(f, 1)
	m.wiring.NoPods = true
	g.Expect(m.create(t.Context())).To(Succeed())
	f.take(m)
	g.Expect(docker.verbs()).To(And(ContainElements("create", "start"), Not(ContainElement("cp"))))
}

func TestAMachineKeepsItsIdentity(t *testing.T) {
	g, docker := NewWithT(t), newFakeDocker()
	f := newTestFleet(t, docker)
	boot(t, f)
	host := boot(t, f).host
	g.Expect(host.Name).To(Equal("host-2"))
	g.Expect(host.Address).To(Equal("172.30.7.3"))
	g.Expect(host.MACAddress).To(Equal("02:42:ac:1e:07:03"))
	g.Expect(docker.calls).To(ContainElement(And(
		HavePrefix("create --pull never --name test-host-2 "), ContainSubstring("--ip 172.30.7.3 --mac-address 02:42:ac:1e:07:03"), HaveSuffix(" talos"))))
}

func TestWhatTheHardwareDoes(t *testing.T) {
	start := []string{"create", "cp", "start"}
	for behaviour, test := range map[string]struct {
		code string
		keep func(*Fleet)
		want []string
	}{
		"a reset machine comes back blank": {code: exitPowerOff, want: []string{"logs", "rm", "create", "cp", "start"}},
		"a machine told to keep its data comes back so": {
			code: exitPowerOff, keep: func(f *Fleet) { _ = f.KeepDataOnReset(context.Background(), true) }, want: []string{"start"},
		},
		"a machine told to keep its configuration comes back with that": {
			code: exitPowerOff, keep: func(f *Fleet) { f.KeepConfigurationOnReset(true) }, want: []string{"cp", "logs", "rm", "create", "cp", "cp", "start"},
		},
		"a machine told to keep nothing any more comes back blank": {
			code: exitPowerOff, keep: func(f *Fleet) { f.KeepConfigurationOnReset(true); f.KeepConfigurationOnReset(false) },
			want: []string{"logs", "rm", "create", "cp", "start"},
		},
		"a machine that reboots comes back":              {code: exitReboot, want: []string{"start"}},
		"a machine that falls over is switched on again": {code: "1", want: []string{"start"}},
	} {
		t.Run(behaviour, func(t *testing.T) {
			g, docker := NewWithT(t), newFakeDocker()
			f := newTestFleet(t, docker)
			if test.keep != nil {
				test.keep(f)
			}
			boot(t, f)
			docker.exits <- test.code
			g.Eventually(docker.verbs).WithTimeout(patience).Should(Equal(append(start, test.want...)))
		})
	}
}

func TestFilesListsWhatIsThere(t *testing.T) {
	g, docker := NewWithT(t), newFakeDocker()
	m := boot(t, newTestFleet(t, docker))
	docker.files["/var/lib/etcd"] = archive(g, "etcd/", "etcd/member/", "etcd/member/snap")
	docker.files["/system/state/config.yaml"] = archive(g, "config.yaml")
	g.Expect(m.files(t.Context(), "/var/lib/etcd")).To(Equal([]string{"/var/lib/etcd/member/snap"}))
	g.Expect(m.files(t.Context(), "/system/state/config.yaml")).To(Equal([]string{"/system/state/config.yaml"}))
	g.Expect(m.files(t.Context(), "/var/lib/kubelet")).To(BeEmpty())
}

// archive is what Docker makes of files; a slash ends the names of folders.
func archive(g *WithT, names ...string) []byte {
	var content bytes.Buffer
	writer := tar.NewWriter(&content)
	for _, name := range names {
		kind := byte(tar.TypeReg)
		if strings.HasSuffix(name, "/") {
			kind = tar.TypeDir
		}
		g.Expect(writer.WriteHeader(&tar.Header{Name: name, Typeflag: kind})).To(Succeed())
	}
	g.Expect(writer.Close()).To(Succeed())
	return content.Bytes()
}

func TestARestartTakesThePowerAway(t *testing.T) {
	g, docker := NewWithT(t), newFakeDocker()
	f := newTestFleet(t, docker)
	host := boot(t, f).host
	g.Expect(f.Restart(t.Context(), host)).To(Succeed())
	g.Expect(docker.verbs()).To(HaveExactElements("create", "cp", "start", "kill"))
	docker.exits <- "137"
	g.Eventually(docker.verbs).WithTimeout(patience).Should(HaveExactElements("create", "cp", "start", "kill", "start"), "its volumes stay")
	host.Name = "stranger"
	g.Expect(f.Restart(t.Context(), host)).NotTo(Succeed())
}

func TestADestroyedMachineDoesNotComeBack(t *testing.T) {
	g, docker := NewWithT(t), newFakeDocker()
	f := newTestFleet(t, docker)
	host := boot(t, f).host
	g.Expect(f.Destroy(t.Context(), host)).To(Succeed())
	g.Expect(docker.verbs()).To(HaveExactElements("create", "cp", "start", "rm"))
	g.Expect(f.Close(t.Context())).To(Succeed(), "it waits for all who watch over machines")
	g.Expect(docker.verbs()).To(HaveExactElements("create", "cp", "start", "rm", "rm"))
	host.Name = "stranger"
	g.Expect(f.Destroy(t.Context(), host)).NotTo(Succeed())
}

// TestTheConsoleIsKept: also of the boots before a machine was wiped.
func TestTheConsoleIsKept(t *testing.T) {
	g, docker := NewWithT(t), newFakeDocker()
	f := newTestFleet(t, docker)
	m := boot(t, f)
	docker.exits <- exitPowerOff
	g.Eventually(func() (string, error) {
		console, err := f.Console(t.Context(), m.host)
		return string(console), err
	}).WithTimeout(patience).Should(MatchRegexp(`(?s)console of test-host-1.*host-1 is wiped.*console of test-host-1`))
}
