// Package patiently holds the script that keeps long steps from looking hung.
package patiently

import (
	"bytes"
	"errors"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

// run runs the script on a command of bash, which sees the folder of the test as $1.
func run(t *testing.T, command string) (stdout, stderr string, status int) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "./patiently.sh", "waiting", "bash", "-c", command, "bash", t.TempDir()) //nolint:gosec // Commands of the tests below.
	cmd.Env = append(cmd.Environ(), "PATIENTLY_SECONDS=0.2")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Like a job of a shell.
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		var exit *exec.ExitError
		if !errors.As(err, &exit) {
			t.Fatal(err)
		}
		status = exit.ExitCode()
	}
	return out.String(), errs.String(), status
}

func TestWhatTheCommandPrintsIsPassedOn(t *testing.T) {
	stdout, stderr, status := run(t, `echo one; echo two >&2; printf '%s' '  three\n'; exit 3`)
	if want := "one\ntwo\n  three\\n"; stdout != want {
		t.Errorf("printed %q instead of %q", stdout, want)
	}
	if stderr != "" || status != 3 {
		t.Errorf("status %d, %q", status, stderr)
	}
}

// TestASilentStepIsToldOf: the command ends only once that has happened.
func TestASilentStepIsToldOf(t *testing.T) {
	// The fifo keeps the command silent, and a half line whole.
	stdout, stderr, status := run(t, `printf begun; mkfifo "$1/silence"; (sleep 1; echo >"$1/silence") & read -r <"$1/silence"; echo " and ended"`)
	if stdout != "begun and ended\n" || status != 0 {
		t.Errorf("status %d, printed %q", status, stdout)
	}
	if !strings.Contains(stderr, "waiting: ") {
		t.Errorf("nothing was told: %q", stderr)
	}
}

// TestAnInterruptedCommandMayTellHowItEnds: its output is read to the end.
func TestAnInterruptedCommandMayTellHowItEnds(t *testing.T) {
	stdout, _, status := run(t, `trap 'echo tidied; exit 7' INT; kill -INT 0; echo not interrupted`)
	if stdout != "tidied\n" || status != 7 {
		t.Errorf("status %d, printed %q", status, stdout)
	}
}
