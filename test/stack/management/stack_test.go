package management_test

import (
	"context"
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capi-talos/capi-talos/test/stack/management"
)

func TestUpInstallsTheCoreProviderAndRunsItsManager(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	stack, err := management.Up(t.Context(), management.StackOptions{Dir: t.TempDir(), Output: t.Output()})
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { g.Expect(stack.Stop(context.WithoutCancel(t.Context()))).To(Succeed()) })

	core := stack.Managers.Get(management.Core)
	g.Expect(core.User).To(Equal("system:serviceaccount:capi-system:capi-manager"))

	wrong := cluster("wrong", map[string]any{"controlPlaneEndpoint": map[string]any{"host": "h", "port": int64(1)},
		"infrastructureRef": map[string]any{"apiGroup": "infrastructure.cluster.x-k8s.io", "kind": "TalosCluster", "name": "x"},
		"clusterNetwork":    map[string]any{"services": map[string]any{"cidrBlocks": []any{"not a network"}}}})
	g.Expect(stack.Client.Create(t.Context(), wrong)).To(MatchError(ContainSubstring("admission webhook")))

	right := cluster("right", map[string]any{"paused": true,
		"infrastructureRef": map[string]any{"apiGroup": "infrastructure.cluster.x-k8s.io", "kind": "TalosCluster", "name": "x"}})
	g.Expect(stack.Client.Create(t.Context(), right)).To(Succeed())
	g.Eventually(func(g Gomega) {
		g.Expect(stack.Client.Get(t.Context(), client.ObjectKeyFromObject(right), right)).To(Succeed())
		conditions, _, _ := unstructured.NestedSlice(right.Object, "status", "conditions")
		g.Expect(conditions).NotTo(BeEmpty(), "the manager reconciles it")
	}).WithTimeout(timeout).Should(Succeed())

	g.Expect(core.Kill()).To(Succeed())
	g.Expect(stack.Check()).To(Succeed(), "a manager that was killed on purpose is no failure")
	g.Expect(stack.Client.Create(t.Context(), cluster("refused", nil))).NotTo(Succeed(), "no webhook answers")
	g.Expect(core.Start(t.Context())).To(Succeed())
	g.Expect(core.Start(t.Context())).To(MatchError(ContainSubstring("runs already")))

	old := &unstructured.Unstructured{}
	old.SetGroupVersionKind(schema.GroupVersionKind{Group: "cluster.x-k8s.io", Version: "v1beta1", Kind: "Cluster"})
	g.Expect(stack.Client.Get(t.Context(), client.ObjectKeyFromObject(right), old)).To(
		MatchError(ContainSubstring("talosclusters.infrastructure.cluster.x-k8s.io")), "the conversion webhook answers: it misses the kind")

	g.Expect(stack.Stop(t.Context())).To(Succeed())
	g.Expect(core.Running()).To(BeFalse())
}

func cluster(name string, spec map[string]any) *unstructured.Unstructured {
	object := &unstructured.Unstructured{Object: map[string]any{"spec": spec}}
	object.SetGroupVersionKind(schema.GroupVersionKind{Group: "cluster.x-k8s.io", Version: "v1beta2", Kind: "Cluster"})
	object.SetNamespace("default")
	object.SetName(name)
	return object
}
