package controllers

import (
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/configgen"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/secrets"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
	talosfake "github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient/fake"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
)

// testBundle is made once: keys are dear.
var testBundle = sync.OnceValues(func() (*secrets.Bundle, error) {
	return secrets.NewBundle(testTime, "v1.13", nil)
})

func bundle(t *testing.T) *secrets.Bundle {
	t.Helper()
	made, err := testBundle()
	NewWithT(t).Expect(err).NotTo(HaveOccurred())

	return made
}

func newBundleSecret(t *testing.T) *corev1.Secret {
	t.Helper()

	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: testNamespace, Name: secrets.BundleName(testCluster), Labels: map[string]string{clusterv1.ClusterNameLabel: testCluster},
		},
		Data: map[string][]byte{secrets.BundleKey: bundle(t).YAML()},
	}
}

// newMachine is a worker Machine with its TalosMachine and bootstrap Secret.
func newMachine(t *testing.T, name string, changes ...func(*infrav1.TalosMachine)) []client.Object {
	t.Helper()
	configuration, err := configgen.Render(configgen.Input{
		Role: configgen.RoleWorker, Contract: "v1.13", ClusterName: testCluster, Endpoint: "https://10.0.0.100:6443",
		KubernetesVersion: "v1.36.3", Secrets: bundle(t).Machinery(),
	})
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	labels := map[string]string{clusterv1.ClusterNameLabel: testCluster}
	machine := &clusterv1.Machine{
		ObjectMeta: metav1.ObjectMeta{Namespace: testNamespace, Name: name, UID: types.UID(name + "-uid"), Labels: labels},
		Spec: clusterv1.MachineSpec{
			ClusterName: testCluster, Version: "v1.36.3", Bootstrap: clusterv1.Bootstrap{DataSecretName: ptr.To(name)},
		},
	}
	talosMachine := &infrav1.TalosMachine{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: testNamespace, Name: name, UID: types.UID(name + "-infra-uid"), Labels: labels,
			OwnerReferences: []metav1.OwnerReference{{APIVersion: clusterv1.GroupVersion.String(), Kind: "Machine", Name: name, UID: machine.UID}},
		},
		Spec: infrav1.TalosMachineSpec{Metal: &infrav1.TalosMachineMetalSpec{}},
	}
	for _, change := range changes {
		change(talosMachine)
	}

	return []client.Object{machine, talosMachine, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: testNamespace, Name: name, Labels: labels},
		Data:       map[string][]byte{"value": configuration},
	}}
}

func newHost(name, address string, changes ...func(*infrav1.TalosHost)) *infrav1.TalosHost {
	host := &infrav1.TalosHost{
		ObjectMeta: metav1.ObjectMeta{Namespace: testNamespace, Name: name, UID: types.UID(name + "-uid")},
		Spec:       infrav1.TalosHostSpec{Addresses: []string{address}, Install: infrav1.HostInstall{Disk: "/dev/vda"}},
	}
	for _, change := range changes {
		change(host)
	}

	return host
}

func newCluster() *clusterv1.Cluster {
	return &clusterv1.Cluster{
		ObjectMeta: metav1.ObjectMeta{Namespace: testNamespace, Name: testCluster, UID: "cluster-uid"},
		Spec: clusterv1.ClusterSpec{InfrastructureRef: clusterv1.ContractVersionedObjectReference{
			APIGroup: infrav1.GroupVersion.Group, Kind: infrav1.TalosClusterKind, Name: testCluster,
		}},
		Status: clusterv1.ClusterStatus{Initialization: clusterv1.ClusterInitializationStatus{InfrastructureProvisioned: ptr.To(true)}},
	}
}

func newTalosCluster() *infrav1.TalosCluster {
	return &infrav1.TalosCluster{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: testNamespace, Name: testCluster, Labels: map[string]string{clusterv1.ClusterNameLabel: testCluster},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: clusterv1.GroupVersion.String(), Kind: "Cluster", Name: testCluster, UID: "cluster-uid"}},
		},
		Spec: infrav1.TalosClusterSpec{ControlPlaneEndpoint: clusterv1.APIEndpoint{Host: "10.0.0.100", Port: 6443}},
	}
}

// addMachine puts a bare metal machine in maintenance mode at an address. It
// installs and wipes itself as it is told, in no time.
func (w *world) addMachine(address string) *bareMetal {
	w.t.Helper()
	number := address[len(address)-1:]
	metal := &bareMetal{world: w, address: address}
	metal.Machine = talosfake.NewMachine(talosfake.State{
		Version: "v1.13.9",
		Hardware: talosclient.Hardware{
			Platform: "metal", Mode: "metal", Architecture: "amd64", CPUs: 8, MemoryBytes: 16 << 30,
			SystemUUID: "4c4c4544-0042-3510-8053-b4c04f4d4e0" + number,
			Disks:      []talosclient.Disk{{DevPath: "/dev/vda", SizeBytes: 20e9}},
			Links:      []talosclient.Link{{Name: "eno1", HardwareAddress: "b0:26:28:00:00:0" + number}},
		},
		Addresses: []string{address}, Hostname: "node-" + number,
	})
	metal.OnApply = func(_ *talosfake.Machine, configuration []byte) error {
		metal.install(configuration)
		metal.boot(false, bundle(w.t).TalosCA())
		return nil
	}
	metal.OnReset = func(_ *talosfake.Machine, options talosclient.ResetOptions) error {
		if len(options.SystemLabels) == 0 {
			return fmt.Errorf("the whole disk of %s would be wiped", address)
		}
		metal.boot(!metal.keepsData, bundle(w.t).TalosCA())
		return nil
	}
	metal.boot(true, nil)
	w.dialer.Add(address, metal.Machine)

	return metal
}

// bareMetal is a machine that counts its boots.
type bareMetal struct {
	*talosfake.Machine
	world     *world
	address   string
	boots     int
	keepsData bool
	silent    bool
}

// SetSilent makes the machine silent, or answer again. Watches break.
func (b *bareMetal) SetSilent(silent bool) {
	b.silent = silent
	b.Machine.SetSilent(silent)
	if !silent {
		return
	}
	NewWithT(b.world.t).Eventually(func() int {
		b.world.countMu.Lock()
		defer b.world.countMu.Unlock()
		return b.world.watched[b.address]
	}).WithTimeout(10*time.Second).WithPolling(time.Millisecond).Should(BeZero(), "a watch does not end")
}

// breakWatches is what a reboot does to connections.
func (b *bareMetal) breakWatches() {
	if !b.silent {
		b.SetSilent(true)
		b.SetSilent(false)
	}
}

// boot starts the machine, blank or with its configuration. Its certificate is
// another one then.
func (b *bareMetal) boot(blank bool, ca []byte) {
	b.boots++
	defer b.breakWatches()
	b.Update(func(state *talosfake.State) {
		state.Maintenance, state.CA = blank, ca
		state.Fingerprint = "boot-" + strconv.Itoa(b.boots)
		state.Status = talosclient.MachineStatus{Stage: talosclient.StageMaintenance}
		state.Volumes = []talosclient.Volume{{ID: "META", Location: "/dev/vda4", ParentLocation: "/dev/vda", PartitionIndex: 4, Filesystem: "talosmeta"}}
		if !blank {
			state.Status = talosclient.MachineStatus{Stage: talosclient.StageRunning, Ready: true}
			state.Volumes = append(state.Volumes,
				talosclient.Volume{ID: "STATE", Location: "/dev/vda5", Filesystem: "xfs"},
				talosclient.Volume{ID: "EPHEMERAL", Location: "/dev/vda6", Filesystem: "xfs"})
		}
	})
}

func (w *world) hosts() []infrav1.TalosHost {
	w.t.Helper()
	list := &infrav1.TalosHostList{}
	NewWithT(w.t).Expect(w.client.List(w.t.Context(), list)).To(Succeed())

	return list.Items
}

func (w *world) machines() []infrav1.TalosMachine {
	w.t.Helper()
	list := &infrav1.TalosMachineList{}
	NewWithT(w.t).Expect(w.client.List(w.t.Context(), list)).To(Succeed())

	return list.Items
}

func (w *world) talosClusters() []infrav1.TalosCluster {
	w.t.Helper()
	list := &infrav1.TalosClusterList{}
	NewWithT(w.t).Expect(w.client.List(w.t.Context(), list)).To(Succeed())

	return list.Items
}

func get[T client.Object](w *world, object T, name string) T {
	w.t.Helper()
	NewWithT(w.t).Expect(w.client.Get(w.t.Context(), client.ObjectKey{Namespace: testNamespace, Name: name}, object)).To(Succeed())

	return object
}

func (w *world) host(name string) *infrav1.TalosHost {
	w.t.Helper()

	return get(w, &infrav1.TalosHost{}, name)
}

func (w *world) machine(name string) *infrav1.TalosMachine {
	w.t.Helper()

	return get(w, &infrav1.TalosMachine{}, name)
}

func (w *world) exists(object client.Object, name string) bool {
	w.t.Helper()
	err := w.client.Get(w.t.Context(), client.ObjectKey{Namespace: testNamespace, Name: name}, object)
	if !apierrors.IsNotFound(err) {
		NewWithT(w.t).Expect(err).NotTo(HaveOccurred())
	}

	return err == nil
}

// change edits an object as a user would, who does not die.
func change[T client.Object](w *world, object T, edit func(T)) {
	w.t.Helper()
	before, _ := object.DeepCopyObject().(T)
	edit(object)
	NewWithT(w.t).Expect(w.client.Patch(w.t.Context(), object, client.MergeFrom(before))).To(Succeed())
}

// remove deletes an object as a user, or core Cluster API, would.
func (w *world) remove(object client.Object) {
	w.t.Helper()
	NewWithT(w.t).Expect(w.client.Delete(w.t.Context(), object)).To(Succeed())
}
