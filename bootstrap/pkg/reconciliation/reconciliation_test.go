package reconciliation_test

import (
	"testing"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	bootstrapv1 "github.com/capi-talos/capi-talos/bootstrap/api/v1beta1"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/reconciliation"
)

const finalizer = "example.com/kept"

func TestBegin(t *testing.T) {
	for name, tc := range map[string]struct {
		finalizer string
		paused    bool
	}{
		"with a finalizer": {finalizer: finalizer},
		"without":          {},
		"paused":           {finalizer: finalizer, paused: true},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			scheme := runtime.NewScheme()
			g.Expect(bootstrapv1.AddToScheme(scheme)).To(Succeed())
			made := &bootstrapv1.TalosConfig{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "a"}}
			c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(made).WithStatusSubresource(made).Build()
			cluster := &clusterv1.Cluster{Spec: clusterv1.ClusterSpec{Paused: ptr.To(tc.paused)}}
			object := &bootstrapv1.TalosConfig{}
			g.Expect(c.Get(t.Context(), client.ObjectKeyFromObject(made), object)).To(Succeed())

			proceed, err := reconciliation.Begin(t.Context(), c, c, cluster, object, tc.finalizer)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(proceed).To(Equal(!tc.paused))
			g.Expect(conditions.IsTrue(object, clusterv1.PausedCondition)).To(Equal(tc.paused))
			if tc.paused {
				g.Expect(object.Finalizers).To(BeEmpty())
				return
			}
			if tc.finalizer != "" {
				g.Expect(object.Finalizers).To(ConsistOf(tc.finalizer))
			}
			object.Labels = map[string]string{"a": "b"}
			g.Expect(c.Update(t.Context(), object)).To(Succeed(), "the object in hand is the newest")
		})
	}
}
