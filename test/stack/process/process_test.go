package process_test

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/capi-talos/capi-talos/test/stack/process"
)

// eventually is how long the tests wait for what takes milliseconds.
const eventually = 30 * time.Second

// start runs a shell script that is killed when the test ends.
func start(t *testing.T, script string) *process.Process {
	t.Helper()
	g := NewWithT(t)
	started, err := process.Start(process.Command{
		Name: "script", Path: "/bin/sh", Args: []string{"-c", script}, Log: filepath.Join(t.TempDir(), "logs", "script.log"),
	})
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { g.Expect(started.Kill()).To(Succeed()) })
	return started
}

// said waits until the process has written that.
func said(g Gomega, p *process.Process, text string) string {
	var content []byte
	g.Eventually(func(g Gomega) {
		var err error
		content, err = os.ReadFile(p.Log())
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(string(content)).To(ContainSubstring(text))
	}).WithTimeout(eventually).Should(Succeed())
	return string(content)
}

func TestStopAsksFirst(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	p := start(t, `trap 'echo bye; exit 0' TERM; echo ready; while :; do sleep 0.01; done`)
	said(g, p, "ready")
	g.Expect(p.Stop(t.Context(), eventually)).To(Succeed())
	said(g, p, "bye")
	g.Expect(p.Running()).To(BeFalse())
	g.Expect(p.Err()).NotTo(HaveOccurred(), "an end that was asked for is no failure")
	g.Expect(p.Stop(t.Context(), eventually)).To(Succeed(), "stopping twice is no error")
}

func TestStopKillsWhatDoesNotEnd(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	p := start(t, `trap '' TERM; echo ready; while :; do sleep 0.01; done`)
	said(g, p, "ready")
	g.Expect(p.Stop(t.Context(), time.Millisecond)).To(Succeed())
	g.Expect(p.Running()).To(BeFalse())
	g.Expect(p.Err()).NotTo(HaveOccurred())
}

func TestKillReachesChildren(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	p := start(t, `sleep 600 & echo "child $! ready"; wait`)
	child, err := strconv.Atoi(strings.Fields(said(g, p, "ready"))[1])
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(p.Kill()).To(Succeed())
	g.Eventually(func() string { return state(child) }).WithTimeout(eventually).Should(BeElementOf("", "Z"))
}

// state is the letter that Linux gives to the state of a process; empty when
// there is none.
func state(pid int) string {
	content, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return ""
	}
	return strings.Fields(string(content[strings.LastIndexByte(string(content), ')')+1:]))[0]
}

func TestErrTellsOfAnEndThatNobodyAskedFor(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	failed := start(t, "exit 3")
	g.Eventually(failed.Err).WithTimeout(eventually).Should(MatchError(ContainSubstring("script ended by itself: exit status 3")))
	done := start(t, "exit 0")
	g.Eventually(done.Err).WithTimeout(eventually).Should(MatchError(ContainSubstring("exit status 0")))
	g.Expect(done.Stop(t.Context(), eventually)).To(Succeed())
	g.Expect(done.Err()).To(HaveOccurred(), "stopping afterwards does not hide it")
}

func TestACtrlCInTheTerminalDoesNotReachIt(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	p := start(t, "echo ready; sleep 600")
	said(g, p, "ready")
	group, err := syscall.Getpgid(p.PID())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(group).To(Equal(p.PID()))
}

func TestStartNamesWhatIsNotThere(t *testing.T) {
	t.Parallel()
	_, err := process.Start(process.Command{Name: "nothing", Path: "/does/not/exist", Log: filepath.Join(t.TempDir(), "log")})
	NewWithT(t).Expect(err).To(MatchError(And(ContainSubstring("starting nothing"), ContainSubstring("/does/not/exist"))))
}

func TestPortsAreHandedOutOnce(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	var first, second process.Ports
	defer first.Release()
	defer second.Release()
	seen := map[int]bool{}
	for range 100 {
		for _, ports := range []*process.Ports{&first, &second} {
			port, err := ports.Take(t.Context())
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(seen).NotTo(HaveKey(port))
			seen[port] = true
		}
	}
}
