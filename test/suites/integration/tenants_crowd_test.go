package integration

import (
	"context"
	"fmt"
	"io"
	"net"
	"sync"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/test/sim/talossim"
)

// crowd is more hosts than the manager has workers, all of which take calls and never
// answer: there are workers left, and the victim is served.
func (n *neighbours) crowd() {
	n.row("more hosts than the manager has workers, whose machines take calls and never answer")
	g, ctx := NewWithT(n.t), n.t.Context()
	const workers, hosts = 100, 150
	crowd := map[string]string{"crowd": ""}
	subnet, err := talossim.ClaimSubnet(ctx)
	g.Expect(err).NotTo(HaveOccurred())
	calls := &hangingCalls{met: map[string]bool{}}
	for i := range hosts {
		address := subnet.Address(i + 1)
		stop := calls.listen(ctx, g, address)
		defer stop()
		g.Expect(n.intruder.Create(ctx, twin(n.used, intruderNamespace, fmt.Sprint("crowd-", i), func(h *infrav1.TalosHost) {
			h.Labels, h.Spec.Addresses = crowd, []string{address}
		}))).To(Succeed())
	}
	g.Eventually(calls.most).WithTimeout(timeout).Should(BeNumerically(">=", workers/4), "the attack is on")
	g.Expect(n.patch(n.victim, n.free, func(h *infrav1.TalosHost) {
		metav1.SetMetaDataAnnotation(&h.ObjectMeta, infrav1.HostRetryAnnotation, "")
	})).To(Succeed())
	g.Eventually(func(g Gomega) {
		found := n.host(g, victimNamespace, n.free.Name)
		g.Expect(found.Annotations).NotTo(HaveKey(infrav1.HostRetryAnnotation))
		g.Expect(found.Status.State).To(Equal(infrav1.HostAvailable))
	}).WithTimeout(timeout).Should(Succeed())
	g.Eventually(calls.all).WithTimeout(timeout).Should(BeNumerically(">=", workers), "there were enough to keep all workers")
	g.Expect(calls.most()).To(BeNumerically("<", workers*3/4), "calls that hang, with some that the manager has just given up")
	// The API server gives up after a minute what asks a webhook about each of so many
	// hosts, and goes on where it stopped when it is asked again.
	g.Eventually(func() error {
		return world.Client.DeleteAllOf(ctx, &infrav1.TalosHost{}, client.InNamespace(intruderNamespace), client.MatchingLabels(crowd))
	}).WithTimeout(timeout).Should(Succeed())
}

// hangingCalls are connections that are taken, and never answered.
type hangingCalls struct {
	mu         sync.Mutex
	open, peak int
	met        map[string]bool
}

func (c *hangingCalls) listen(ctx context.Context, g Gomega, address string) (stop func()) {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", net.JoinHostPort(address, "50000"))
	g.Expect(err).NotTo(HaveOccurred())
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			c.count(address, 1)
			go func() {
				_, _ = io.Copy(io.Discard, conn)
				_ = conn.Close()
				c.count(address, -1)
			}()
		}
	}()
	return func() { _ = listener.Close() }
}

func (c *hangingCalls) count(address string, by int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.met[address] = true
	c.open += by
	c.peak = max(c.peak, c.open)
}

func (c *hangingCalls) most() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.peak
}

func (c *hangingCalls) all() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.met)
}
