package jobs

import (
	"context"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

type step string

const working step = "working"

type result struct{ count int }

// hanging is work that hangs until it is let go.
func hanging(letGo <-chan struct{}) Work[step, result] {
	return func(ctx context.Context, progress func(step)) result {
		progress(working)
		select {
		case <-letGo:
		case <-ctx.Done():
		}
		return result{count: 7}
	}
}

func key(namespace, cluster, name string) Key {
	return Key{Namespace: namespace, Cluster: cluster, Name: name}
}

func nameOf(key Key) types.NamespacedName {
	return types.NamespacedName{Namespace: key.Namespace, Name: key.Name}
}

func told(g *WithT, jobs *Jobs[step, result]) string {
	var name string
	g.Eventually(jobs.Events()).Should(Receive(HaveField("Object", Satisfy(func(object any) bool {
		made, is := object.(*metav1.PartialObjectMetadata)
		name = made.Name
		return is
	}))))

	return name
}

func TestTheLifeOfAJob(t *testing.T) {
	g, letGo := NewWithT(t), make(chan struct{})
	jobs, one := New[step, result](t.Context(), Limits{Total: 10, PerCluster: 2}), key("a", "blue", "one")
	_, running := jobs.Running(nameOf(one))
	g.Expect(running).To(BeFalse())
	g.Expect(jobs.Result(nameOf(one))).To(BeNil())

	g.Expect(jobs.Start(one, hanging(letGo))).To(BeTrue())
	g.Expect(told(g, jobs)).To(Equal("one"))
	doing, running := jobs.Running(nameOf(one))
	g.Expect(running).To(BeTrue())
	g.Expect(doing).To(Equal(working))
	jobs.Forget(nameOf(one), nil)
	_, running = jobs.Running(nameOf(one))
	g.Expect(running).To(BeTrue(), "what runs is not forgotten")

	close(letGo)
	g.Expect(told(g, jobs)).To(Equal("one"))
	_, running = jobs.Running(nameOf(one))
	g.Expect(running).To(BeFalse())
	g.Expect(jobs.Result(nameOf(one))).To(Equal(&result{count: 7}))
	ended := jobs.Result(nameOf(one))
	g.Expect(jobs.Start(one, hanging(letGo))).To(BeTrue())
	g.Expect(told(g, jobs)).To(Equal("one"))
	g.Expect(told(g, jobs)).To(Equal("one"))
	jobs.Forget(nameOf(one), ended)
	g.Expect(jobs.Result(nameOf(one))).NotTo(BeNil(), "that of the next job is another one")
	jobs.Forget(nameOf(one), jobs.Result(nameOf(one)))
	g.Expect(jobs.Result(nameOf(one))).To(BeNil())
}

// TestNobodyTakesAllJobs: neither a cluster nor a namespace keeps the others waiting, and
// whoever was refused is told when there is room.
func TestNobodyTakesAllJobs(t *testing.T) {
	g, letGo := NewWithT(t), make(chan struct{})
	jobs := New[step, result](t.Context(), Limits{Total: 8, PerCluster: 2})
	start := func(key Key) bool {
		started := jobs.Start(key, hanging(letGo))
		if started {
			g.Expect(told(g, jobs)).To(Equal(key.Name))
		}
		return started
	}
	g.Expect(start(key("a", "blue", "a1"))).To(BeTrue())
	g.Expect(start(key("a", "blue", "a2"))).To(BeTrue())
	g.Expect(start(key("a", "blue", "a3"))).To(BeFalse(), "the cluster has its share")
	g.Expect(start(key("a", "red", "a4"))).To(BeTrue())
	g.Expect(start(key("a", "red", "a5"))).To(BeTrue())
	g.Expect(start(key("a", "green", "a6"))).To(BeFalse(), "the namespace has its share")
	g.Expect(start(key("b", "blue", "b1"))).To(BeTrue())
	g.Expect(start(key("b", "blue", "b2"))).To(BeTrue())
	g.Expect(start(key("b", "red", "b3"))).To(BeFalse())
	g.Expect(start(key("c", "blue", "c1"))).To(BeTrue())

	letGo <- struct{}{}
	ended := told(g, jobs)
	g.Expect([]string{"a1", "a2", "a4", "a5", "b1", "b2", "c1"}).To(ContainElement(ended))
	close(letGo)
	var woken []string
	for range 6 + 3 {
		woken = append(woken, told(g, jobs))
	}
	g.Expect(woken).To(ContainElements("a3", "a6", "b3"))
}

func TestAnObjectThatIsNoMoreDoesNotWait(t *testing.T) {
	g, letGo := NewWithT(t), make(chan struct{})
	jobs := New[step, result](t.Context(), Limits{Total: 1, PerCluster: 1})
	counted := func() []int {
		running, waiting := jobs.Count()
		return []int{running, waiting}
	}
	one, two, three := key("a", "blue", "one"), key("a", "blue", "two"), key("a", "blue", "three")
	g.Expect(counted()).To(Equal([]int{0, 0}))
	g.Expect(jobs.Start(one, hanging(letGo))).To(BeTrue())
	g.Expect(told(g, jobs)).To(Equal("one"))
	for range 2 {
		g.Expect(jobs.Start(two, hanging(letGo))).To(BeFalse())
		g.Expect(jobs.Start(three, hanging(letGo))).To(BeFalse())
	}
	g.Expect(counted()).To(Equal([]int{1, 2}))
	jobs.Drop(nameOf(two))
	g.Expect(counted()).To(Equal([]int{1, 1}))
	jobs.Drop(nameOf(one))
	g.Expect(counted()).To(Equal([]int{1, 1}), "what runs is not dropped")

	close(letGo)
	g.Expect(told(g, jobs)).To(Equal("one"))
	g.Expect(told(g, jobs)).To(Equal("three"))
	jobs.Drop(nameOf(one))
	g.Expect(jobs.Result(nameOf(one))).To(BeNil())
	g.Expect(counted()).To(Equal([]int{0, 0}))
}

// TestATurnThatIsNotUsed goes to the next one that waits.
func TestATurnThatIsNotUsed(t *testing.T) {
	g, letGo := NewWithT(t), make(chan struct{})
	jobs := New[step, result](t.Context(), Limits{Total: 1, PerCluster: 1, Turn: time.Millisecond})
	one, two, three := key("a", "blue", "one"), key("b", "blue", "two"), key("c", "blue", "three")
	g.Expect(jobs.Start(one, hanging(letGo))).To(BeTrue())
	g.Expect(told(g, jobs)).To(Equal("one"))
	g.Expect(jobs.Start(two, hanging(nil))).To(BeFalse())
	g.Expect(jobs.Start(three, hanging(nil))).To(BeFalse())
	close(letGo)
	g.Expect(told(g, jobs)).To(Equal("one"))
	g.Expect(told(g, jobs)).To(Equal("two"))
	g.Expect(told(g, jobs)).To(Equal("three"))
	g.Expect(jobs.Start(three, hanging(nil))).To(BeTrue())
	running, waiting := jobs.Count()
	g.Expect([]int{running, waiting}).To(Equal([]int{1, 0}))
}

func TestAJobThatIsCancelledEnds(t *testing.T) {
	g := NewWithT(t)
	jobs, one, two := New[step, result](t.Context(), Limits{Total: 10, PerCluster: 2}), key("a", "blue", "one"), key("a", "blue", "two")
	jobs.Cancel(nameOf(one))
	for _, each := range []Key{one, two} {
		g.Expect(jobs.Start(each, hanging(nil))).To(BeTrue())
		g.Expect(told(g, jobs)).To(Equal(each.Name))
	}
	jobs.Cancel(nameOf(one))
	g.Expect(told(g, jobs)).To(Equal("one"))
	g.Expect(jobs.Result(nameOf(one))).NotTo(BeNil())
	_, running := jobs.Running(nameOf(two))
	g.Expect(running).To(BeTrue())
}
