package wipe

import (
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
)

func TestWipesAreRemembered(t *testing.T) {
	g, host, at := NewWithT(t), &infrav1.TalosHost{}, time.Unix(1, 0)
	known := func() []string {
		var ids []string
		for _, wiped := range host.Spec.Wiped {
			ids = append(ids, wiped.ProviderID)
		}
		return ids
	}
	Remember(host, "", at)
	g.Expect(host.Spec.Wiped).To(BeNil(), "the machine of somebody else has no provider ID of ours")

	Remember(host, "a", at)
	Remember(host, "b", at)
	g.Expect(known()).To(Equal([]string{"b", "a"}), "the latest is the first")
	Remember(host, "a", at.Add(time.Hour))
	g.Expect(known()).To(Equal([]string{"a", "b"}), "none is there twice")
	g.Expect(host.Spec.Wiped[0].ProvenAt.Time).To(Equal(at.Add(time.Hour)))

	Forget(host, "c")
	g.Expect(known()).To(Equal([]string{"a", "b"}))
	Forget(host, "a")
	Forget(host, "b")
	g.Expect(host.Spec.Wiped).To(BeNil(), "an empty list is none")

	for i := range 2 * infrav1.MaxHostWipes {
		Remember(host, fmt.Sprint(i), at)
	}
	g.Expect(known()).To(HaveLen(infrav1.MaxHostWipes))
	g.Expect(known()[0]).To(Equal(fmt.Sprint(2*infrav1.MaxHostWipes - 1)))
}

func TestMachinesInPodsThatAreGoneAreRemembered(t *testing.T) {
	g, cluster := NewWithT(t), &infrav1.TalosCluster{}
	known := func() []string { return infrav1.GoneMachines(cluster.Annotations) }
	g.Expect(known()).To(BeEmpty())
	g.Expect(RememberGone(cluster, "")).To(BeFalse(), "a machine without an ID was never bootstrapped")
	g.Expect(RememberGone(cluster, "a,b")).To(BeFalse(), "it would be read as two others")
	g.Expect(known()).To(BeEmpty())

	g.Expect(RememberGone(cluster, "talos://a")).To(BeTrue())
	g.Expect(RememberGone(cluster, "talos://b")).To(BeTrue())
	g.Expect(RememberGone(cluster, "talos://a")).To(BeFalse(), "none is there twice")
	g.Expect(known()).To(Equal([]string{"talos://b", "talos://a"}), "the latest is the first")

	for i := range 2 * infrav1.MaxGoneMachines {
		RememberGone(cluster, fmt.Sprint(i))
	}
	g.Expect(known()).To(HaveLen(infrav1.MaxGoneMachines))
	g.Expect(known()[0]).To(Equal(fmt.Sprint(2*infrav1.MaxGoneMachines - 1)))
}
