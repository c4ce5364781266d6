package parts

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"sync"
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/utils/clock"
)

// events remembers what a Builder tells.
type events struct {
	mu   sync.Mutex
	said []string
}

func (e *events) add(event Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.said = append(e.said, event.Part+" "+string(event.State))
}

func (e *events) all() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.said)
}

// writer is a part that consists of one file.
func writer(name string, needs ...string) Part {
	return Part{Name: name, Version: "v1", Needs: needs, Build: func(_ context.Context, space *Workspace) error {
		return os.WriteFile(filepath.Join(space.Out, name), []byte(name), 0o600)
	}}
}

func newBuilder(t *testing.T, cache string, table ...Part) (*Builder, *events) {
	t.Helper()
	told := &events{}
	return &Builder{Table: table, Cache: cache, Modules: t.TempDir(), Progress: told.add, Clock: clock.RealClock{}}, told
}

func TestEnsureBuildsOnceAndWhatIsNeededFirst(t *testing.T) {
	g, cache := NewWithT(t), t.TempDir()
	table := []Part{writer("base"), writer("other"), writer("top", "base")}
	builder, told := newBuilder(t, cache, table...)
	missing, err := builder.Missing(t.Context(), "top")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(missing).To(Equal([]string{"base", "top"}))

	built, err := builder.Ensure(t.Context(), "top")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(built).To(HaveLen(2))
	g.Expect(os.ReadFile(built.Path("top"))).To(BeEquivalentTo("top"))
	g.Expect(told.all()).To(Equal([]string{"base building", "base built", "top building", "top built"}))

	builder, told = newBuilder(t, cache, table...)
	again, err := builder.Ensure(t.Context(), "top")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(again).To(Equal(built))
	g.Expect(told.all()).To(Equal([]string{"base cached", "top cached"}))
}

func TestEnsureBuildsAgainWhenSomethingChanges(t *testing.T) {
	for behaviour, change := range map[string]func(base, top *Part){
		"an input of it":            func(_, top *Part) { top.Inputs = []string{"new"} },
		"a flag":                    func(_, top *Part) { top.LDFlags = "-X a=b" },
		"its version":               func(_, top *Part) { top.Version = "v2" },
		"an input of what it needs": func(base, _ *Part) { base.Inputs = []string{"new"} },
	} {
		t.Run(behaviour, func(t *testing.T) {
			g, cache := NewWithT(t), t.TempDir()
			base, top := writer("base"), writer("top", "base")
			builder, _ := newBuilder(t, cache, base, top)
			first, err := builder.Ensure(t.Context(), "top")
			g.Expect(err).NotTo(HaveOccurred())
			change(&base, &top)
			builder, _ = newBuilder(t, cache, base, top)
			second, err := builder.Ensure(t.Context(), "top")
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(second.Dir("top")).NotTo(Equal(first.Dir("top")))
		})
	}
}

func TestEnsureLeavesNothingOfAFailedBuild(t *testing.T) {
	g, cache := NewWithT(t), t.TempDir()
	broken := writer("broken")
	broken.Build = func(_ context.Context, space *Workspace) error {
		g.Expect(os.WriteFile(filepath.Join(space.Out, "half"), nil, 0o600)).To(Succeed())
		return errors.New("no more disk")
	}
	builder, told := newBuilder(t, cache, broken)
	_, err := builder.Ensure(t.Context(), "broken")
	g.Expect(err).To(MatchError("building part broken v1: no more disk"))
	g.Expect(told.all()).To(Equal([]string{"broken building", "broken failed"}))
	g.Expect(filepath.Glob(filepath.Join(cache, "broken", "v1*"))).To(BeEmpty())
	g.Expect(filepath.Glob(filepath.Join(cache, "broken", unfinished+"*"))).To(BeEmpty())

	// A build that was killed leaves its folder to the next one.
	left := filepath.Join(cache, "broken", unfinished+"1")
	g.Expect(os.MkdirAll(filepath.Join(left, "scratch"), 0o500)).To(Succeed())
	builder, _ = newBuilder(t, cache, writer("broken"))
	_, err = builder.Ensure(t.Context(), "broken")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(left).NotTo(BeADirectory())
}

func TestEnsureWaitsForAnotherThatBuilds(t *testing.T) {
	g, cache := NewWithT(t), t.TempDir()
	begun, goOn := make(chan struct{}), make(chan struct{})
	slow := writer("slow")
	write := slow.Build
	slow.Build = func(ctx context.Context, space *Workspace) error {
		close(begun)
		<-goOn
		return write(ctx, space)
	}
	first, _ := newBuilder(t, cache, slow)
	second, told := newBuilder(t, cache, slow)
	var group sync.WaitGroup
	defer group.Wait()
	group.Go(func() {
		_, err := first.Ensure(t.Context(), "slow")
		g.Expect(err).NotTo(HaveOccurred())
	})
	<-begun
	group.Go(func() {
		_, err := second.Ensure(t.Context(), "slow")
		g.Expect(err).NotTo(HaveOccurred())
	})
	g.Eventually(told.all).Should(Equal([]string{"slow " + string(Waiting)}))
	close(goOn)
	group.Wait()
	g.Expect(told.all()).To(Equal([]string{"slow " + string(Waiting), "slow cached"}))
}

func TestTheTableIsSound(t *testing.T) {
	g := NewWithT(t)
	modules, err := modulesDir()
	g.Expect(err).NotTo(HaveOccurred())
	before := map[string]bool{}
	for _, part := range Table() {
		g.Expect(before).NotTo(HaveKey(part.Name), "names are unique")
		for _, need := range part.Needs {
			g.Expect(before).To(HaveKey(need), "%s comes after what it needs", part.Name)
		}
		if part.Module != "" {
			g.Expect(filepath.Join(modules, part.Module, "go.mod")).To(BeARegularFile(), part.Name)
		}
		g.Expect(part.Version).NotTo(BeEmpty(), part.Name)
		if len(part.Commands) > 0 && part.Version != ownProgramsVersion {
			pinned, err := os.ReadFile(filepath.Join(modules, part.Module, "go.mod"))
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(string(pinned)).To(MatchRegexp(`(?m) %s( |$)`, regexp.QuoteMeta(part.Version)), "%s is of the version that its module pins", part.Name)
		}
		before[part.Name] = true
	}
	_, err = find(Table(), []string{"wrong"})
	g.Expect(err).To(MatchError(`part "wrong", which was asked for, does not exist`))
}
