package vms

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
)

// followRunning logs each change of what the TalosMachines of a namespace say of whether they run,
// until stop is called.
func followRunning(t *testing.T, management client.Client, namespace string) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	began, said := time.Now(), map[string]string{}
	look := func(ctx context.Context) (bool, error) {
		list := &infrav1.TalosMachineList{}
		if err := management.List(ctx, list, client.InNamespace(namespace)); err != nil {
			return false, nil //nolint:nilerr // The next look will tell.
		}
		for i := range list.Items {
			name, says := list.Items[i].Name, running(&list.Items[i])
			if said[name] != says {
				t.Logf("after %.0f s: TalosMachine %s: %s", time.Since(began).Seconds(), name, says)
			}
			said[name] = says
		}
		return false, nil
	}
	var following sync.WaitGroup
	following.Go(func() { _ = wait.PollUntilContextCancel(ctx, interval, true, look) })
	return func() {
		cancel()
		following.Wait()
	}
}

// running is what a TalosMachine says of whether it runs.
func running(machine *infrav1.TalosMachine) string {
	found := conditions.Get(machine, infrav1.RunningCondition)
	if found == nil {
		return "it does not say whether it runs"
	}
	return fmt.Sprintf("%s %s %s %s", found.Type, found.Status, found.Reason, found.Message)
}

// tellConditions logs all conditions of the TalosMachine and of the host.
func (l *lives) tellConditions(ctx context.Context, t *testing.T, when string) {
	t.Helper()
	g := NewWithT(t)
	machine, err := l.talosMachine(ctx)
	g.Expect(err).NotTo(HaveOccurred())
	host, err := l.host(ctx)
	g.Expect(err).NotTo(HaveOccurred())
	for kind, object := range map[string]conditions.Getter{"TalosMachine": machine, "TalosHost": host} {
		for _, found := range object.GetConditions() {
			t.Logf("the machine %s: %s: %s %s %s %s", when, kind, found.Type, found.Status, found.Reason, found.Message)
		}
	}
}
