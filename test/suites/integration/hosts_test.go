package integration

import (
	"encoding/json"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/test/sim/fleet"
	"github.com/capi-talos/capi-talos/test/sim/fleet/simfleet"
	"github.com/capi-talos/capi-talos/test/sim/talossim"
	"github.com/capi-talos/capi-talos/test/stack/management"
)

// hostLife is a cluster of one control plane machine, which is retained, and one worker, on
// two hosts.
type hostLife struct {
	namespace           string
	machines            *simfleet.Fleet
	controlPlane, other fleet.Host
	// judge asks the judge of etcd.
	judge func()
}

// TestHostsThatAPersonDecidesAbout: what a person says of a host and its machine, in one
// cluster.
func TestHostsThatAPersonDecidesAbout(t *testing.T) {
	t.Parallel()
	const name = "host-life"
	g := NewWithT(t)
	machines := newFleet(t, simfleet.Options{Personality: talossim.Metal})
	createNamespace(t, name)
	hosts, err := machines.Add(t.Context(), 2)
	g.Expect(err).NotTo(HaveOccurred())
	l := &hostLife{namespace: name, machines: machines, controlPlane: hosts[0], other: hosts[1], judge: func() { expectNoOffence(t) }}
	forgetHosts(t, name)
	// Each step goes on from where the one before has ended.
	_ = t.Run("a machine with another maintenance certificate than demanded is not used", func(t *testing.T) { l.demandCertificates(t) }) &&
		t.Run("a machine that is renumbered is reached at the address that is added", func(t *testing.T) { l.renumber(t) }) &&
		t.Run("a machine that a MachineHealthCheck marks is wiped there, and its host is in quarantine", func(t *testing.T) { l.quarantine(t) }) &&
		t.Run("a machine that is retained is left alone", func(t *testing.T) { l.retain(t) }) &&
		t.Run("a machine of a cluster that is gone is adopted", func(t *testing.T) { l.adopt(t) })
}

// demandCertificates makes the cluster. The machine of the other host was booted since a
// person has read its console.
func (l *hostLife) demandCertificates(t *testing.T) {
	t.Helper()
	g, ctx := NewWithT(t), t.Context()
	addDemanding := func(host fleet.Host, fingerprint string) {
		manifest := host.Manifest(l.namespace, nil)
		manifest.Spec.MaintenanceCertFingerprint = fingerprint
		g.Expect(world.Client.Create(ctx, manifest)).To(Succeed())
	}
	addDemanding(l.controlPlane, maintenanceFingerprint(t, l.controlPlane))
	former := maintenanceFingerprint(t, l.other)
	l.machines.Machine(l.other).PowerCycle()
	g.Eventually(func() int { return l.machines.Machine(l.other).Boots() }).WithTimeout(timeout).Should(Equal(2))
	addDemanding(l.other, former)
	newCluster(t, l.machines, management.Shape{Namespace: l.namespace, ControlPlanes: 1, Workers: 1}, l.shape)

	g.Eventually(func(g Gomega) {
		g.Expect(told(l.host(t, g, l.controlPlane), infrav1.AvailableCondition).Reason).To(Equal(infrav1.HostClaimedByReason))
		refused := told(l.host(t, g, l.other), infrav1.AvailableCondition)
		g.Expect(refused.Reason).To(Equal(infrav1.HostFingerprintReason))
		g.Expect(refused.Message).To(ContainSubstring("compare with the machine's console"))
		l.expectNoHost(t, g, "1 with another maintenance certificate than demanded")
	}).WithTimeout(timeout).Should(Succeed())
	g.Expect(l.machines.Machine(l.other).Configuration()).To(BeNil())

	l.patch(t, l.other, map[string]any{"maintenanceCertFingerprint": maintenanceFingerprint(t, l.other)})
	awaitAvailable(t, l.namespace)
	g.Expect(l.host(t, g, l.other).Spec.ConsumerRef.Name).To(Equal(l.worker(t, g).Name))
}

// renumber gives the worker's machine another lease.
func (l *hostLife) renumber(t *testing.T) {
	t.Helper()
	g, ctx := NewWithT(t), t.Context()
	before, worker := l.other, l.worker(t, g)
	var err error
	l.other, err = l.machines.Renumber(before)
	g.Expect(err).NotTo(HaveOccurred())
	g.Eventually(func(g Gomega) {
		g.Expect(told(l.worker(t, g), infrav1.RunningCondition)).To(HaveField("Reason", infrav1.UnreachableReason))
	}).WithTimeout(timeout).Should(Succeed())

	l.patch(t, l.other, map[string]any{"addresses": []string{before.Address, l.other.Address}})
	g.Eventually(func(g Gomega) {
		g.Expect(told(l.worker(t, g), infrav1.ReadyCondition)).To(HaveField("Status", metav1.ConditionTrue))
		machines := machinesOf(ctx, g, l.namespace, false)
		g.Expect(machines).To(HaveLen(1))
		g.Expect(machines[0].Status.Addresses).To(And(
			ContainElement(HaveField("Address", l.other.Address)), Not(ContainElement(HaveField("Address", before.Address)))))
	}).WithTimeout(timeout).Should(Succeed())
	awaitAvailable(t, l.namespace)
	g.Expect(l.worker(t, g).UID).To(Equal(worker.UID))
	g.Expect(l.machines.Machine(l.other).Resets()).To(BeEmpty())
}

// quarantine has the MachineHealthCheck of the template mark the worker. Its successor gets the
// host once a person has looked at it.
func (l *hostLife) quarantine(t *testing.T) {
	t.Helper()
	g, ctx := NewWithT(t), t.Context()
	marked := machinesOf(ctx, g, l.namespace, false)[0]
	kubectl(t, l.namespace, "annotate", "machine", marked.Name, clusterv1.RemediateMachineAnnotation+"=")
	g.Eventually(func(g Gomega) {
		g.Expect(l.worker(t, g).Name).NotTo(Equal(marked.Spec.InfrastructureRef.Name))
		quarantined := told(l.host(t, g, l.other), infrav1.AvailableCondition)
		g.Expect(quarantined.Reason).To(Equal(infrav1.HostQuarantinedReason))
		g.Expect(quarantined.Message).To(ContainSubstring(infrav1.HostRetryAnnotation))
		l.expectNoHost(t, g, "1 in quarantine")
	}).WithTimeout(timeout).Should(Succeed())
	g.Expect(l.machines.Wiped(ctx, l.other)).To(Succeed())

	kubectl(t, l.namespace, "annotate", "taloshost", l.other.Name, infrav1.HostRetryAnnotation+"=")
	awaitAvailable(t, l.namespace)
	host := l.host(t, g, l.other)
	g.Expect(host.Spec.ConsumerRef.Name).To(Equal(l.worker(t, g).Name))
	g.Expect(host.Spec.Quarantine).To(BeZero())
	g.Expect(host.Annotations).NotTo(HaveKey(infrav1.HostRetryAnnotation))
}

// retain deletes the cluster, and keeps its talosconfig, as a person would have.
func (l *hostLife) retain(t *testing.T) {
	t.Helper()
	g, ctx := NewWithT(t), t.Context()
	kept := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: l.namespace, Name: keptTalosconfig},
		Data:       map[string][]byte{"talosconfig": clientConfigsOf(t, g, l.namespace).talosconfig.Data["talosconfig"]},
	}
	g.Expect(world.Client.Create(ctx, kept)).To(Succeed())
	machine := l.machines.Machine(l.controlPlane)
	boots, configuration := machine.Boots(), machine.Configuration()
	l.judge()
	deleteClusters(t, l.namespace, l.namespace)
	g.Eventually(func(g Gomega) {
		g.Expect(l.host(t, g, l.other).Status.State).To(Equal(infrav1.HostAvailable))
		host := l.host(t, g, l.controlPlane)
		g.Expect(host.Status.State).To(Equal(infrav1.HostError))
		g.Expect(host.Spec.ConsumerRef).To(BeZero())
		retained := told(host, infrav1.ReleasedCondition)
		g.Expect(retained.Reason).To(Equal(infrav1.RetainedReason))
		g.Expect(retained.Message).To(ContainSubstring("reset it to maintenance mode"))
	}).WithTimeout(timeout).Should(Succeed())
	g.Expect(l.machines.Wiped(ctx, l.other)).To(Succeed())

	kubectl(t, l.namespace, "delete", "taloshost", l.controlPlane.Name)
	g.Expect(machine.Resets()).To(BeEmpty())
	g.Expect(machine.Boots()).To(Equal(boots))
	g.Expect(machine.Configuration()).To(Equal(configuration))
}

// keptTalosconfig is a Secret that is a person's.
const keptTalosconfig = "kept"

// adopt has a new TalosHost stand for the machine that was retained.
func (l *hostLife) adopt(t *testing.T) {
	t.Helper()
	g, ctx := NewWithT(t), t.Context()
	machine := l.machines.Machine(l.controlPlane)
	g.Expect(world.Client.Create(ctx, l.controlPlane.Manifest(l.namespace, nil))).To(Succeed())
	g.Eventually(func(g Gomega) {
		foreign := told(l.host(t, g, l.controlPlane), infrav1.AvailableCondition)
		g.Expect(foreign.Reason).To(Equal(infrav1.HostForeignReason))
		g.Expect(foreign.Message).To(ContainSubstring("set adoptionPolicy WipeForeign with its talosconfig"))
	}).WithTimeout(timeout).Should(Succeed())
	g.Expect(machine.Resets()).To(BeEmpty())

	l.patch(t, l.controlPlane, map[string]any{"adoptionPolicy": infrav1.AdoptionWipeForeign, "adoptionSecretRef": map[string]any{"name": keptTalosconfig}})
	expectStates(t, l.namespace, infrav1.HostAvailable, 2)
	g.Expect(machine.Wiped()).To(Succeed())
	g.Expect(machine.Resets()).To(HaveLen(1))
	g.Expect(world.Client.Get(ctx, client.ObjectKey{Namespace: l.namespace, Name: keptTalosconfig}, &corev1.Secret{})).To(Succeed(), "it is the person's")
}

// shape has the control plane machine retained, and the MachineHealthCheck act although there
// is only one worker.
func (l *hostLife) shape(object *unstructured.Unstructured) {
	setField("MachineHealthCheck", "100%", "spec", "remediation", "triggerIf", "unhealthyLessThanOrEqualTo")(object)
	if object.GetName() == l.namespace+"-control-plane" {
		setField(infrav1.TalosMachineTemplateKind, string(infrav1.ReleaseRetain), "spec", "template", "spec", "metal", "releasePolicy")(object)
		setField(infrav1.TalosMachineTemplateKind, int64(shortRelease.Seconds()), "spec", "template", "spec", "metal", "releaseTimeoutSeconds")(object)
	}
}

// host is the TalosHost of a machine.
func (l *hostLife) host(t *testing.T, g Gomega, host fleet.Host) *infrav1.TalosHost {
	t.Helper()
	found := &infrav1.TalosHost{}
	g.Expect(world.Client.Get(t.Context(), client.ObjectKey{Namespace: l.namespace, Name: host.Name}, found)).To(Succeed())
	return found
}

// worker is the TalosMachine of the worker that stays.
func (l *hostLife) worker(t *testing.T, g Gomega) *infrav1.TalosMachine {
	t.Helper()
	workers := machinesOf(t.Context(), g, l.namespace, false)
	g.Expect(workers).To(HaveLen(1))
	g.Expect(workers[0].DeletionTimestamp.IsZero()).To(BeTrue())
	return infraOf(t.Context(), g, workers[0])
}

// expectNoHost expects that the worker finds no host, and why.
func (l *hostLife) expectNoHost(t *testing.T, g Gomega, because string) {
	t.Helper()
	g.Expect(told(l.worker(t, g), infrav1.AllocatedCondition)).To(And(
		HaveField("Reason", infrav1.NoHostFitsReason), HaveField("Message", ContainSubstring(because))))
}

// patch changes fields of the spec of a TalosHost, as users do.
func (l *hostLife) patch(t *testing.T, host fleet.Host, spec map[string]any) {
	t.Helper()
	patch, err := json.Marshal(map[string]any{"spec": spec})
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	kubectl(t, l.namespace, "patch", "taloshost", host.Name, "--type=merge", "--patch", string(patch))
}

// maintenanceFingerprint is what the machine of a host prints on its console.
func maintenanceFingerprint(t *testing.T, host fleet.Host) string {
	t.Helper()
	pool := talosclient.New()
	defer pool.Close()
	var fingerprint string
	NewWithT(t).Eventually(func(g Gomega) {
		node, err := pool.Maintenance(t.Context(), host.Address, "")
		g.Expect(err).NotTo(HaveOccurred())
		fingerprint = node.Fingerprint()
		g.Expect(node.Close()).To(Succeed())
	}).WithTimeout(timeout).Should(Succeed())
	return fingerprint
}
