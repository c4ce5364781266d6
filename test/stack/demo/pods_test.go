package demo

import (
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/capi-talos/capi-talos/test/sim/fleet"
)

// versions is a fleet of which only the versions are asked for.
type versions struct{ fleet.Fleet }

// NextKubernetesVersion implements fleet.Fleet.
func (versions) NextKubernetesVersion() string { return "v1.36.3" }

// withObjects is a scenario in Pods with these objects in its namespace.
func withObjects(t *testing.T, objects ...client.Object) *Scenario {
	t.Helper()
	scheme, err := Scheme()
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return &Scenario{Cluster: "demo", InPods: true, client: fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).Build()}
}

func meta(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: "demo", Name: name, Labels: map[string]string{clusterv1.ClusterNameLabel: "demo"}}
}

func machine(name string) clusterv1.Machine {
	return clusterv1.Machine{Spec: clusterv1.MachineSpec{InfrastructureRef: clusterv1.ContractVersionedObjectReference{Name: name}}}
}

func TestExpectPods(t *testing.T) {
	running := corev1.PodStatus{Phase: corev1.PodRunning}
	one := &corev1.Pod{ObjectMeta: meta("one"), Status: running}
	for behaviour, test := range map[string]struct {
		pods    []client.Object
		message string
	}{
		"is content with a running Pod for each machine": {pods: []client.Object{&corev1.Pod{ObjectMeta: meta("two"), Status: running}, one}},
		"misses a Pod":        {pods: []client.Object{one}, message: "there are Pods one for machines one, two"},
		"sees a Pod too many": {pods: []client.Object{one, &corev1.Pod{ObjectMeta: meta("three"), Status: running}}, message: "there are Pods one, three"},
		"wants them to run":   {pods: []client.Object{&corev1.Pod{ObjectMeta: meta("one"), Status: corev1.PodStatus{Phase: corev1.PodPending}}}, message: "Pod one is Pending"},
	} {
		t.Run(behaviour, func(t *testing.T) {
			err := withObjects(t, test.pods...).expectPods(t.Context(), []clusterv1.Machine{machine("one"), machine("two")})
			if test.message == "" {
				NewWithT(t).Expect(err).NotTo(HaveOccurred())
				return
			}
			NewWithT(t).Expect(err).To(MatchError(ContainSubstring(test.message)))
		})
	}
}

func TestExpectNothingLeftNamesAllThatIs(t *testing.T) {
	g := NewWithT(t)
	g.Expect(ExpectNothingLeft(t.Context(), withObjects(t).client, "demo")).To(Succeed())
	scenario := withObjects(t,
		&corev1.Service{ObjectMeta: meta("s")}, &corev1.Secret{ObjectMeta: meta("t")}, &policyv1.PodDisruptionBudget{ObjectMeta: meta("b")},
		&corev1.PersistentVolumeClaim{ObjectMeta: meta("c")}, &corev1.Pod{ObjectMeta: meta("p")})
	g.Expect(ExpectNothingLeft(t.Context(), scenario.client, "demo")).
		To(MatchError("left: PersistentVolumeClaim c, Pod p, PodDisruptionBudget b, Secret t, Service s"))
}

func TestAScenarioInPodsNeedsNoHosts(t *testing.T) {
	g := NewWithT(t)
	names := func(scenario *Scenario) []string {
		scenario.ControlPlanes, scenario.Workers, scenario.Fleet = []int{1, 3, 1}, []int{1, 3, 2}, versions{}
		var found []string
		for _, step := range scenario.steps() {
			found = append(found, step.name)
		}
		return found
	}
	middle := []string{"create cluster", "nodes", "3 control planes", "3 workers", "2 workers", "workload", "add-on", "add-on upgrade", "no add-on", "backup", "no backup", "1 control plane", "rollout", "delete cluster"}
	g.Expect(names(&Scenario{InPods: true})).To(Equal(append(append([]string{}, middle...), "nothing left")))
	g.Expect(names(&Scenario{})).To(Equal(append(append([]string{"hosts"}, middle...), "wiped hosts")))
}
