package containers

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/test/stack/management"
)

// kills is how often TestManagersAreKilledAtTwentyMoments kills, most of them
// before the cluster is deleted; moments is the seed of the moments.
const kills, killsBefore, moments = 20, 17, 5

// TestManagersAreKilledAtTwentyMoments kills the infrastructure manager with SIGKILL
// after seeded numbers of changes of what it works on, while a cluster comes, grows,
// shrinks and goes: no machine ever has two Pods.
func TestManagersAreKilledAtTwentyMoments(t *testing.T) {
	const name = "killed"
	g := NewWithT(t)
	story := watchPods(t, name)
	killed := killAtMoments(t, name)
	create(t, name, 1, 1)
	awaitCluster(t, name, 1, 1)
	scale(t, name, "taloscontrolplane", name+"-control-plane", 3)
	awaitCluster(t, name, 3, 1)
	for again := true; again; again = killed.Load() < killsBefore {
		for _, workers := range []int{2, 1} {
			scale(t, name, "machinedeployment", name+"-workers", workers)
			awaitCluster(t, name, 3, workers)
		}
	}
	expectNoOffence(t, name, 0)
	deleteCluster(t, name)
	story.expectOneEach(g, 5)
	g.Expect(killed.Load()).To(BeEquivalentTo(kills))
}

// killAtMoments kills the infrastructure manager until the test ends, and counts.
func killAtMoments(t *testing.T, namespace string) *atomic.Int32 {
	t.Helper()
	g := NewWithT(t)
	changes := make(chan struct{})
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	var running sync.WaitGroup
	for _, list := range []client.ObjectList{&infrav1.TalosMachineList{}, &infrav1.TalosClusterList{}, &corev1.PodList{}, &corev1.ServiceList{}} {
		events, err := world.Client.Watch(ctx, list, client.InNamespace(namespace))
		g.Expect(err).NotTo(HaveOccurred())
		running.Go(func() { forward(ctx, events, changes) })
	}
	count := &atomic.Int32{}
	failed := make(chan error, 1)
	running.Go(func() { failed <- killAfter(ctx, changes, count) })
	t.Cleanup(func() {
		stop()
		running.Wait()
		g.Expect(<-failed).To(Succeed())
	})
	return count
}

func forward(ctx context.Context, events watch.Interface, changes chan<- struct{}) {
	defer events.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-events.ResultChan():
		}
		select {
		case <-ctx.Done():
			return
		case changes <- struct{}{}:
		}
	}
}

// killAfter kills the manager after seeded numbers of changes. Those that happen
// while it is away are not counted.
func killAfter(ctx context.Context, changes <-chan struct{}, count *atomic.Int32) error {
	const most = 4
	random := rand.New(rand.NewPCG(moments, moments))
	infrastructure := world.Stack.Managers.Get(management.Infrastructure)
	for count.Load() < kills {
		for range 1 + random.IntN(most) {
			select {
			case <-ctx.Done():
				return nil
			case <-changes:
			}
		}
		if err := infrastructure.Kill(); err != nil {
			return err
		}
		count.Add(1)
		started := make(chan error, 1)
		go func() { started <- infrastructure.Start(context.WithoutCancel(ctx)) }()
		for waiting := true; waiting; {
			select {
			case <-changes:
			case err := <-started:
				if err != nil {
					return err
				}
				waiting = false
			}
		}
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-changes:
		}
	}
}

// TestTwoManagersMakeOnePodPerMachine has two infrastructure managers work at the
// same time, as when leader election fails; the other tests run meanwhile.
func TestTwoManagersMakeOnePodPerMachine(t *testing.T) {
	t.Parallel()
	const name = "twins"
	g, ctx := NewWithT(t), t.Context()
	twin, err := world.Stack.Twin(ctx, management.Infrastructure)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(twin.Start(ctx)).To(Succeed())
	t.Cleanup(func() { g.Expect(twin.Stop(context.WithoutCancel(ctx))).To(Succeed()) })
	story := watchPods(t, name)
	create(t, name, 1, 3, onVolumes("-workers"))
	awaitCluster(t, name, 1, 3)
	scale(t, name, "taloscontrolplane", name+"-control-plane", 3)
	awaitCluster(t, name, 3, 3)
	expectNoOffence(t, name, 0)
	story.expectOneEach(g, 6)
	services := &corev1.ServiceList{}
	g.Expect(world.Client.List(ctx, services, client.InNamespace(name))).To(Succeed())
	g.Expect(services.Items).To(HaveLen(4), "one per control plane machine, and that of the cluster")

	// Pods that go by hand while both look.
	machines := machinesOf(ctx, g, name, ofDeployment(name+"-workers"))
	for i := range machines {
		g.Expect(world.Client.Delete(ctx, podOf(ctx, g, &machines[i]))).To(Succeed())
	}
	for i := range machines {
		g.Eventually(func() []string { return world.Pods.Created(podKey(&machines[i])) }).WithTimeout(timeout).WithPolling(polling).Should(HaveLen(2))
	}
	awaitCluster(t, name, 3, 3)
	for i := range machines {
		g.Consistently(func() []string { return world.Pods.Created(podKey(&machines[i])) }).WithTimeout(time.Second).Should(HaveLen(2), "made again once")
	}
	deleteCluster(t, name)
	g.Expect(twin.Check()).To(Succeed())
}

// evict asks for the Pod of a Machine to be evicted, as kubectl drain does.
func evict(t *testing.T, machine metav1.Object) error {
	t.Helper()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: machine.GetNamespace(), Name: machine.GetName()}}
	return world.Client.SubResource("eviction").Create(t.Context(), pod, eviction(pod))
}
