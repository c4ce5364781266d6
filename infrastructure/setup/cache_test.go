package setup

import (
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
)

func TestOnlyWhatIsOursIsCached(t *testing.T) {
	g := NewWithT(t)
	ours := labels.Set{infrav1.MachineLabel: "a", clusterv1.ClusterNameLabel: "one"}
	selecting := 0
	for object, by := range CacheByObject() {
		if by.Label != nil {
			selecting++
			g.Expect(by.Label.Matches(ours)).To(BeTrue(), "%T", object)
			g.Expect(by.Label.Matches(labels.Set{"app": "theirs"})).To(BeFalse(), "%T", object)
		}
	}
	g.Expect(selecting).To(Equal(4))
}

func TestOfANodeOnlyItsImagesAreDropped(t *testing.T) {
	g := NewWithT(t)
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "node-1", Labels: map[string]string{corev1.LabelTopologyZone: "z1"}},
		Status: corev1.NodeStatus{
			Images: []corev1.ContainerImage{{Names: []string{"talos"}}}, Capacity: corev1.ResourceList{corev1.ResourceCPU: {}},
		},
	}
	wanted := node.DeepCopy()
	wanted.Status.Images = nil
	kept, err := withoutImages(node)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(kept).To(Equal(wanted))
}
