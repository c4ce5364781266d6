package containers

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/test/sim/etcdmodel"
	"github.com/capi-talos/capi-talos/test/sim/fleet/simfleet"
	"github.com/capi-talos/capi-talos/test/stack/management"
)

// polling is how often is looked at what takes seconds.
const polling = 250 * time.Millisecond

// change changes an object before it is created.
type change func(*unstructured.Unstructured)

// set sets a field of the objects of a kind whose names end in a certain way.
func set(kind, ending string, value any, path ...string) change {
	return func(object *unstructured.Unstructured) {
		if object.GetKind() != kind || !strings.HasSuffix(object.GetName(), ending) {
			return
		}
		if err := unstructured.SetNestedField(object.Object, value, path...); err != nil {
			panic(err)
		}
	}
}

// container sets a field below container of the TalosMachineTemplate of such a
// name.
func container(ending string, value any, path ...string) change {
	return set(infrav1.TalosMachineTemplateKind, ending, value, append([]string{"spec", "template", "spec", "container"}, path...)...)
}

// onVolumes has the machines of a TalosMachineTemplate keep their data on volumes.
func onVolumes(ending string) change {
	return container(ending, map[string]any{"type": "VolumeClaim", "volumeClaim": map[string]any{"size": "10Gi"}}, "storage")
}

// manifests are those of flavor container. The Service is of type LoadBalancer:
// nothing leads from this host to cluster IPs.
func manifests(t *testing.T, name string, controlPlanes, workers int) []*unstructured.Unstructured {
	t.Helper()
	g := NewWithT(t)
	text, err := world.Stack.Clusterctl.Generate(t.Context(), name, map[string]string{"CONTROL_PLANE_SERVICE_TYPE": "LoadBalancer"},
		"--infrastructure", "talos", "--flavor", "container", "--target-namespace", name, "--kubernetes-version", simfleet.KubernetesVersion,
		"--control-plane-machine-count", strconv.Itoa(controlPlanes), "--worker-machine-count", strconv.Itoa(workers))
	g.Expect(err).NotTo(HaveOccurred())
	objects, err := management.Objects(text)
	g.Expect(err).NotTo(HaveOccurred())
	return objects
}

// create makes a namespace and a cluster of its name.
func create(t *testing.T, name string, controlPlanes, workers int, changes ...change) {
	t.Helper()
	g := NewWithT(t)
	g.Expect(world.Client.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{infrav1.PodSecurityLabel: infrav1.PodSecurityPrivileged}}})).To(Succeed())
	for _, object := range manifests(t, name, controlPlanes, workers) {
		for _, change := range changes {
			change(object)
		}
		// Where managers are killed, a webhook may be away for a moment.
		var err error
		g.Eventually(func() bool {
			err = world.Client.Create(t.Context(), object.DeepCopy())
			return apierrors.IsInternalError(err)
		}).WithTimeout(timeout).WithPolling(polling).Should(BeFalse(), object.GetKind())
		g.Expect(err).NotTo(HaveOccurred(), object.GetKind())
	}
	t.Cleanup(func() {
		if t.Failed() {
			report(t, name)
		}
	})
}

// addWorkers adds one more set of workers, of its own template, to a cluster.
func addWorkers(t *testing.T, cluster, ending string, changes ...change) {
	t.Helper()
	g := NewWithT(t)
	for _, object := range manifests(t, cluster, 1, 1) {
		if !strings.HasSuffix(object.GetName(), "-workers") || object.GetKind() == "MachineHealthCheck" {
			continue
		}
		object.SetName(cluster + ending)
		for _, path := range [][]string{{"spec", "template", "spec", "bootstrap", "configRef", "name"}, {"spec", "template", "spec", "infrastructureRef", "name"}} {
			if object.GetKind() == "MachineDeployment" {
				g.Expect(unstructured.SetNestedField(object.Object, cluster+ending, path...)).To(Succeed())
			}
		}
		for _, change := range changes {
			change(object)
		}
		g.Eventually(func() error { return world.Client.Create(t.Context(), object.DeepCopy()) }).WithTimeout(timeout).Should(Succeed(), object.GetKind())
	}
}

// told is a condition of an object, or an empty one.
func told(object conditions.Getter, kind string) metav1.Condition {
	if found := conditions.Get(object, kind); found != nil {
		return *found
	}
	return metav1.Condition{}
}

// machinesOf are the Machines of a cluster with a label.
func machinesOf(ctx context.Context, g Gomega, name string, labels ...client.ListOption) []clusterv1.Machine {
	found := &clusterv1.MachineList{}
	g.Expect(world.Client.List(ctx, found, append(labels, client.InNamespace(name))...)).To(Succeed())
	return found.Items
}

func ofControlPlane() client.ListOption { return client.HasLabels{clusterv1.MachineControlPlaneLabel} }

func ofDeployment(name string) client.ListOption {
	return client.MatchingLabels{clusterv1.MachineDeploymentNameLabel: name}
}

// awaitCluster waits until a cluster is available, with so many Machines, all
// available.
func awaitCluster(t *testing.T, name string, controlPlanes, workers int) {
	t.Helper()
	NewWithT(t).Eventually(func(g Gomega) {
		cluster := &clusterv1.Cluster{}
		g.Expect(world.Client.Get(t.Context(), client.ObjectKey{Namespace: name, Name: name}, cluster)).To(Succeed())
		machines := machinesOf(t.Context(), g, name)
		g.Expect(machines).To(HaveLen(controlPlanes + workers))
		for i := range machines {
			g.Expect(told(&machines[i], clusterv1.AvailableCondition)).To(HaveField("Status", metav1.ConditionTrue), machines[i].Name)
			g.Expect(told(&machines[i], clusterv1.MachineUpToDateCondition)).To(HaveField("Status", metav1.ConditionTrue), machines[i].Name)
		}
		g.Expect(machinesOf(t.Context(), g, name, ofControlPlane())).To(HaveLen(controlPlanes))
		g.Expect(told(cluster, clusterv1.AvailableCondition)).To(HaveField("Status", metav1.ConditionTrue))
		controlPlane := controlPlaneOf(t.Context(), g, name)
		g.Expect(controlPlane.Status.ReadyReplicas).To(HaveValue(BeEquivalentTo(controlPlanes)))
		g.Expect(told(controlPlane, controlplanev1.EtcdClusterHealthyCondition)).To(HaveField("Status", metav1.ConditionTrue))
	}).WithTimeout(timeout).WithPolling(polling).Should(Succeed())
}

func controlPlaneOf(ctx context.Context, g Gomega, name string) *controlplanev1.TalosControlPlane {
	found := &controlplanev1.TalosControlPlane{}
	g.Expect(world.Client.Get(ctx, client.ObjectKey{Namespace: name, Name: name + "-control-plane"}, found)).To(Succeed())
	return found
}

// kubectl runs it in the namespace of a cluster.
func kubectl(t *testing.T, name string, args ...string) {
	t.Helper()
	NewWithT(t).Eventually(func() error {
		_, err := world.Stack.Kubectl(t.Context(), append([]string{"--namespace", name}, args...)...)
		return err
	}).WithTimeout(timeout).WithPolling(polling).Should(Succeed())
}

func scale(t *testing.T, name, kind, object string, replicas int) {
	t.Helper()
	kubectl(t, name, "scale", kind, object, "--replicas="+strconv.Itoa(replicas))
}

// deleteCluster deletes a cluster, and waits until nothing of it is left.
func deleteCluster(t *testing.T, name string) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	g := NewWithT(t)
	g.Eventually(func() error {
		return client.IgnoreNotFound(world.Client.Delete(ctx, &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: name, Name: name}}))
	}).WithTimeout(timeout).Should(Succeed())
	g.Eventually(func(g Gomega) {
		for _, list := range []client.ObjectList{
			&clusterv1.ClusterList{}, &clusterv1.MachineList{}, &infrav1.TalosClusterList{}, &infrav1.TalosMachineList{},
			&controlplanev1.TalosControlPlaneList{}, &corev1.PodList{}, &corev1.ServiceList{}, &corev1.SecretList{},
			&corev1.PersistentVolumeClaimList{}, &policyv1.PodDisruptionBudgetList{},
		} {
			g.Expect(world.Client.List(ctx, list, client.InNamespace(name))).To(Succeed())
			g.Expect(list).To(HaveField("Items", BeEmpty()), "%T", list)
		}
		volumes := &corev1.PersistentVolumeList{}
		g.Expect(world.Client.List(ctx, volumes)).To(Succeed())
		for _, volume := range volumes.Items {
			g.Expect(volume.Spec.ClaimRef.Namespace).NotTo(Equal(name), "a volume is left")
		}
	}).WithTimeout(timeout).WithPolling(polling).Should(Succeed())
	for _, machine := range world.Pods.Sim.Machines() {
		g.Expect(machine.Spec().Name).NotTo(HavePrefix(name+"/"), "data of a machine is left")
	}
}

// podKey is the name of the Pod of a Machine.
func podKey(machine *clusterv1.Machine) client.ObjectKey { return client.ObjectKeyFromObject(machine) }

// podOf is the Pod of a Machine.
func podOf(ctx context.Context, g Gomega, machine *clusterv1.Machine) *corev1.Pod {
	pod := &corev1.Pod{}
	g.Expect(world.Client.Get(ctx, podKey(machine), pod)).To(Succeed())
	return pod
}

// talosMachine is that of a Machine.
func talosMachine(ctx context.Context, g Gomega, machine *clusterv1.Machine) *infrav1.TalosMachine {
	found := &infrav1.TalosMachine{}
	g.Expect(world.Client.Get(ctx, client.ObjectKeyFromObject(machine), found)).To(Succeed())
	return found
}

// How long a MachineHealthCheck waits: less than anybody wants to, after what an
// infrastructure manager takes to tell that a Pod is lost; and longer than any machine takes
// to come back.
const impatient, patient = 15 * time.Second, 10 * time.Minute

// waitForNodes sets how long a MachineHealthCheck of a cluster waits for a Node that is not
// ready.
func waitForNodes(t *testing.T, name, check string, patience time.Duration) {
	t.Helper()
	kubectl(t, name, "patch", "machinehealthcheck", check, "--type=merge", "--patch", fmt.Sprintf(
		`{"spec":{"checks":{"unhealthyNodeConditions":[{"type":"Ready","status":"Unknown","timeoutSeconds":%[1]d},{"type":"Ready","status":"False","timeoutSeconds":%[1]d}]}}}`,
		int(patience.Seconds())))
}

// podStory are the UIDs of all Pods that a namespace has had, by their names.
type podStory struct {
	mu   sync.Mutex
	seen map[string]sets.Set[types.UID]
}

// watchPods writes down the Pods of a namespace until the test ends.
func watchPods(t *testing.T, namespace string) *podStory {
	t.Helper()
	g := NewWithT(t)
	pods, err := world.Client.Watch(t.Context(), &corev1.PodList{}, client.InNamespace(namespace))
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(pods.Stop)
	story := &podStory{seen: map[string]sets.Set[types.UID]{}}
	go func() {
		for event := range pods.ResultChan() {
			if pod, ok := event.Object.(*corev1.Pod); ok {
				story.add(pod)
			}
		}
	}()
	return story
}

func (s *podStory) add(pod *corev1.Pod) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.seen[pod.Name] == nil {
		s.seen[pod.Name] = sets.New[types.UID]()
	}
	s.seen[pod.Name].Insert(pod.UID)
}

// expectOneEach wants one Pod, ever, of each name, and at least so many names.
func (s *podStory) expectOneEach(g Gomega, least int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	g.Expect(len(s.seen)).To(BeNumerically(">=", least))
	for name, uids := range s.seen {
		g.Expect(uids).To(HaveLen(1), name)
	}
}

// expectNoOffence asks the judge: etcd of the cluster was bootstrapped once, and neither
// its quorum was ever taken away nor a voter that answered, when fewer than least were
// left. The deletion of the cluster is not to be judged.
func expectNoOffence(t *testing.T, name string, least int) {
	t.Helper()
	g, bootstraps := NewWithT(t), 0
	for _, act := range world.Pods.Sim.Acts() {
		if !strings.HasPrefix(act.Node, name+"/") {
			continue
		}
		act.Least = least // The judge of the package has that of all clusters in common.
		g.Expect(act.Offence()).NotTo(HaveOccurred())
		if act.Call == etcdmodel.CallBootstrap && act.Refusal == nil {
			bootstraps++
		}
	}
	g.Expect(bootstraps).To(Equal(1))
}

// report tells what is known of a cluster whose test failed.
func report(t *testing.T, name string) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	var lines []string
	note := func(kind string, object client.Object, found []metav1.Condition) {
		for _, condition := range found {
			if condition.Status != metav1.ConditionTrue && condition.Message != "" {
				lines = append(lines, fmt.Sprintf("%s %s: %s %s %s: %s", kind, object.GetName(), condition.Type, condition.Status, condition.Reason, condition.Message))
			}
		}
	}
	clusters, machines, controlPlanes, pods := &infrav1.TalosClusterList{}, &infrav1.TalosMachineList{}, &controlplanev1.TalosControlPlaneList{}, &corev1.PodList{}
	for _, list := range []client.ObjectList{clusters, machines, controlPlanes, pods} {
		if err := world.Client.List(ctx, list, client.InNamespace(name)); err != nil {
			t.Log(err)
		}
	}
	for i := range clusters.Items {
		note("TalosCluster", &clusters.Items[i], clusters.Items[i].Status.Conditions)
	}
	for i := range controlPlanes.Items {
		note("TalosControlPlane", &controlPlanes.Items[i], controlPlanes.Items[i].Status.Conditions)
	}
	for i := range machines.Items {
		lines = append(lines, fmt.Sprintf("TalosMachine %s: %+v", machines.Items[i].Name, machines.Items[i].Spec.Pod))
		note("TalosMachine", &machines.Items[i], machines.Items[i].Status.Conditions)
	}
	for i := range pods.Items {
		pod := &pods.Items[i]
		lines = append(lines, fmt.Sprintf("Pod %s on %q: %s %s, %+v", pod.Name, pod.Spec.NodeName, pod.Status.Phase, pod.Status.PodIP, pod.Status.ContainerStatuses))
	}
	for _, machine := range world.Pods.Sim.Machines() {
		if strings.HasPrefix(machine.Spec().Name, name+"/") {
			lines = append(lines, fmt.Sprintf("machine %s at %q: node %q, stage %s, data of etcd %t, voters answering %s",
				machine.Spec().Name, machine.Spec().Address, machine.Hostname(), machine.Stage(), machine.HasEtcdData(), world.Pods.Sim.Voters(machine)))
		}
	}
	slices.Sort(lines)
	t.Log(strings.Join(lines, "\n"))
}
