package container

import (
	"fmt"
	"testing"

	. "github.com/onsi/gomega"

	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
)

func TestMachinesInPodsThatAreGoneAreRemembered(t *testing.T) {
	g, cluster := NewWithT(t), &infrav1.TalosCluster{}
	known := func() []string { return infrav1.GoneMachines(cluster.Annotations) }
	g.Expect(known()).To(BeEmpty())
	g.Expect(addGone(cluster, "")).To(BeFalse(), "a machine without an ID was never bootstrapped")
	g.Expect(addGone(cluster, "a,b")).To(BeFalse(), "it would be read as two others")
	g.Expect(known()).To(BeEmpty())

	g.Expect(addGone(cluster, "talos://a")).To(BeTrue())
	g.Expect(addGone(cluster, "talos://b")).To(BeTrue())
	g.Expect(addGone(cluster, "talos://a")).To(BeFalse(), "none is there twice")
	g.Expect(known()).To(Equal([]string{"talos://b", "talos://a"}), "the latest is the first")

	for i := range 2 * infrav1.MaxGoneMachines {
		addGone(cluster, fmt.Sprint(i))
	}
	g.Expect(known()).To(HaveLen(infrav1.MaxGoneMachines))
	g.Expect(known()[0]).To(Equal(fmt.Sprint(2*infrav1.MaxGoneMachines - 1)))
}
