package controllers

import (
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	bootstrapv1 "github.com/capi-talos/capi-talos/bootstrap/api/v1beta1"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/configgen"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
	talosfake "github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient/fake"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/infrastructure/internal/credentials"
)

// The tests of this file are named after the rows of the table of bad input in
// the documentation.

// expectNotClaimed reports whether TalosMachine "a" waits, and why.
func expectNotClaimed(w *world, because string) {
	w.t.Helper()
	g := NewWithT(w.t)
	found := conditions.Get(w.machine("a"), infrav1.AllocatedCondition)
	g.Expect(found.Reason).To(Equal(infrav1.NoHostFitsReason))
	g.Expect(found.Message).To(ContainSubstring(because))
	g.Expect(w.host("h1").Spec.ConsumerRef).To(BeZero())
	g.Expect(w.recorded()).To(ContainElement(HavePrefix("Warning NeedsAttention NoHostFits: ")))
}

// expectError reports whether a host is in state Error, and why.
func expectError(w *world, name, reason, message string) {
	w.t.Helper()
	g := NewWithT(w.t)
	host := w.host(name)
	g.Expect(host.Status.State).To(Equal(infrav1.HostError), name)
	available := conditions.Get(host, infrav1.AvailableCondition)
	g.Expect(available.Reason).To(Equal(reason))
	g.Expect(available.Message).To(ContainSubstring(message))
	g.Expect(w.recorded()).To(ContainElement(And(HavePrefix("Warning HostError "), ContainSubstring(message))))
}

func TestBadInputContractNewerThanTheReleaseOfTheHost(t *testing.T) {
	g := NewWithT(t)
	w := newWorld(t, append(newMachine(t, "a"), newHost("h1", "10.0.0.1"), &bootstrapv1.TalosConfig{
		ObjectMeta: metav1.ObjectMeta{Namespace: testNamespace, Name: "a"}, Spec: bootstrapv1.TalosConfigSpec{TalosVersion: "v1.14"},
	})...)
	change(w, get(w, &clusterv1.Machine{}, "a"), func(m *clusterv1.Machine) {
		m.Spec.Bootstrap.ConfigRef = clusterv1.ContractVersionedObjectReference{APIGroup: bootstrapv1.GroupVersion.Group, Kind: "TalosConfig", Name: "a"}
	})
	metal := w.addMachine("10.0.0.1")
	m := w.manager()
	w.settle(m)
	expectNotClaimed(w, "1 with a Talos release older than the contract of the machine configuration")
	g.Expect(metal.Applied()).To(BeEmpty())

	metal.Update(func(s *talosfake.State) { s.Version = "v1.14.1" })
	metal.boot(true, nil)
	w.settle(m)
	g.Expect(w.machine("a").Spec.HostRef.Name).To(Equal("h1"))
}

func TestBadInputKubernetesVersionThatTheReleaseOfTheHostDenies(t *testing.T) {
	w := newWorld(t, append(newMachine(t, "a"), newHost("h1", "10.0.0.1"))...)
	change(w, get(w, &clusterv1.Machine{}, "a"), func(m *clusterv1.Machine) { m.Spec.Version = "v1.42.0" })
	metal := w.addMachine("10.0.0.1")
	w.settle(w.manager())
	expectNotClaimed(w, "1 with a Talos release that does not support the Kubernetes version")
	NewWithT(t).Expect(metal.Applied()).To(BeEmpty())
}

func TestBadInputTwoHostsWithOneAddress(t *testing.T) {
	g := NewWithT(t)
	w, m, metal := provisioned(t)
	calls := w.asked["10.0.0.1"]
	g.Expect(w.client.Create(t.Context(), newHost("h2", "10.0.0.1", func(h *infrav1.TalosHost) {
		h.Spec.AdoptionPolicy, h.Spec.AdoptionSecretRef.Name = infrav1.AdoptionWipeForeign, credentials.AdminName("h1")
	}))).To(Succeed())
	before := w.host("h1").ResourceVersion
	w.settle(m)
	expectError(w, "h2", infrav1.HostIdentityReason, "TalosHost h1 stands for the same machine or names the same address")
	g.Expect(conditions.Get(w.host("h2"), infrav1.IdentityVerifiedCondition).Reason).To(Equal(infrav1.IdentityDuplicateReason))
	g.Expect(w.host("h1").ResourceVersion).To(Equal(before), "the first is untouched")
	g.Expect(w.host("h1").Status.State).To(Equal(infrav1.HostProvisioned))
	g.Expect(metal.Resets()).To(BeEmpty(), "its adoption would wipe the first one's machine")
	g.Expect(w.asked["10.0.0.1"]).To(Equal(calls), "the machine is not even asked")
}

func TestBadInputTwoHostsWithOneIdentity(t *testing.T) {
	t.Run("both free", func(t *testing.T) {
		g := NewWithT(t)
		w := newWorld(t, newHost("h1", "10.0.0.1"), newHost("h2", "10.0.0.2"))
		metal := w.addMachine("10.0.0.1")
		w.dialer.Add("10.0.0.2", metal.Machine)
		m := w.manager()
		w.settle(m)
		g.Expect(w.host("h1").Status.State).To(Equal(infrav1.HostAvailable))
		expectError(w, "h2", infrav1.HostIdentityReason, "TalosHost h1 stands for the same machine")

		w.remove(w.host("h1"))
		w.settle(m)
		g.Expect(w.host("h2").Status.State).To(Equal(infrav1.HostAvailable), "the other one is gone")
	})
	t.Run("the first in use, and the second may adopt", func(t *testing.T) {
		g := NewWithT(t)
		w, m, metal := provisioned(t)
		w.dialer.Add("10.0.0.2", metal.Machine)
		w.addTalosconfig("theirs")
		g.Expect(w.client.Create(t.Context(), newHost("h2", "10.0.0.2", adoptWith("theirs")))).To(Succeed())
		w.settle(m)
		expectError(w, "h2", infrav1.HostIdentityReason, "TalosHost h1 stands for the same machine")
		g.Expect(w.host("h1").Status.State).To(Equal(infrav1.HostProvisioned))
		g.Expect(metal.Resets()).To(BeEmpty())
	})
	t.Run("claimed in one moment", func(t *testing.T) {
		g := NewWithT(t)
		w, m, _ := provisioned(t)
		for _, object := range append(newMachine(t, "b"), newHost("h2", "10.0.0.2")) {
			g.Expect(w.client.Create(t.Context(), object)).To(Succeed())
		}
		other := w.addMachine("10.0.0.2")
		w.beforeUpdate = func(object client.Object) {
			g.Expect(object.GetName()).To(Equal("h2"), "the finalizer is patched, so the first update is the claim")
			change(w, w.host("h1"), func(h *infrav1.TalosHost) {
				h.Spec.Handover.Identity = infrav1.HostIdentity{UUID: other.Snapshot().Hardware.SystemUUID}
			})
		}
		w.settle(m)
		found := conditions.Get(w.machine("b"), infrav1.ConfigurationAppliedCondition)
		g.Expect(found.Reason).To(Equal(infrav1.HostDuplicateReason))
		g.Expect(found.Message).To(ContainSubstring("TalosHost h1 is in use"))
		g.Expect(other.Applied()).To(BeEmpty())
		expectError(w, "h2", infrav1.HostIdentityReason, "TalosHost h1 is in use")
	})
}

// swap lets the machines of two addresses change places.
func (w *world) swap(a, b string, first, second *bareMetal) {
	w.dialer.Add(a, second.Machine)
	w.dialer.Add(b, first.Machine)
	first.address, second.address = b, a
	for _, metal := range []*bareMetal{first, second} {
		metal.Machine.SetSilent(true)
		metal.Machine.SetSilent(false)
	}
	for _, metal := range []*bareMetal{first, second} {
		metal.breakWatches()
	}
}

func TestBadInputAHostAnswersWithAnotherIdentityThanBefore(t *testing.T) {
	t.Run("a free one", func(t *testing.T) {
		g := NewWithT(t)
		w := newWorld(t, newHost("h1", "10.0.0.1"))
		metal := w.addMachine("10.0.0.1")
		m := w.manager()
		w.settle(m)
		metal.Update(func(s *talosfake.State) { s.Hardware.SystemUUID = "4c4c4544-0042-3510-8053-b4c04f4d4e99" })
		metal.boot(true, nil)
		for _, object := range newMachine(t, "a") {
			g.Expect(w.client.Create(t.Context(), object)).To(Succeed())
		}
		w.settle(m)
		expectError(w, "h1", infrav1.HostIdentityReason, "Another machine than the host's answers at 10.0.0.1; nothing is sent to it")
		expectNotClaimed(w, "1 not available")
		g.Expect(metal.Applied()).To(BeEmpty())

		change(w, w.host("h1"), func(h *infrav1.TalosHost) {
			metav1.SetMetaDataAnnotation(&h.ObjectMeta, infrav1.HostRetryAnnotation, "")
		})
		w.settle(m)
		g.Expect(w.machine("a").Spec.HostRef.Name).To(Equal("h1"), "a person has said that it is the right one")
	})
	t.Run("one in use", func(t *testing.T) {
		g := NewWithT(t)
		w, m, metal := provisioned(t)
		metal.SetSilent(true)
		stranger := w.addMachine("10.0.0.1")
		stranger.Update(func(s *talosfake.State) { s.Hardware.SystemUUID = "4c4c4544-0042-3510-8053-b4c04f4d4e99" })
		w.settle(m)
		expectError(w, "h1", infrav1.HostIdentityReason, "Another machine than the host's answers")
		g.Expect(conditions.Get(w.machine("a"), infrav1.RunningCondition).Reason).To(Equal(infrav1.HostIdentityMismatchReason))
		g.Expect(w.recorded()).To(ContainElement(HavePrefix("Warning NeedsAttention IdentityMismatch: ")))

		w.remove(w.machine("a"))
		w.settle(m)
		g.Expect(stranger.Applied()).To(BeEmpty())
		g.Expect(stranger.Resets()).To(BeEmpty())

		metal.SetSilent(false)
		w.dialer.Add("10.0.0.1", metal.Machine)
		w.settle(m)
		expectFree(w, "h1")
	})
	t.Run("one in use, by a machine of another cluster", func(t *testing.T) {
		g := NewWithT(t)
		w, m, metal := provisioned(t)
		metal.SetSilent(true)
		stranger := w.addMachine("10.0.0.1")
		stranger.boot(false, []byte("theirs"))
		w.settle(m)
		expectError(w, "h1", infrav1.HostForeignReason, "The machine that answers belongs to another cluster; nothing is sent to it")
		w.dialer.Add("10.0.0.1", metal.Machine)
		metal.SetSilent(false)
		w.settle(m)
		g.Expect(w.host("h1").Status.State).To(Equal(infrav1.HostProvisioned), "it is back")
		g.Expect(conditions.IsTrue(w.machine("a"), infrav1.ReadyCondition)).To(BeTrue())
	})
}

func TestBadInputTwoHostsSwappedAddresses(t *testing.T) {
	t.Run("both free", func(t *testing.T) {
		g := NewWithT(t)
		w := newWorld(t, newHost("h1", "10.0.0.1"), newHost("h2", "10.0.0.2"))
		first, second := w.addMachine("10.0.0.1"), w.addMachine("10.0.0.2")
		m := w.manager()
		w.settle(m)
		w.swap("10.0.0.1", "10.0.0.2", first, second)
		for _, object := range newMachine(t, "a") {
			g.Expect(w.client.Create(t.Context(), object)).To(Succeed())
		}
		g.Eventually(func() infrav1.HostState { w.settle(m); return w.host("h1").Status.State }).Should(Equal(infrav1.HostError))
		for _, name := range []string{"h1", "h2"} {
			expectError(w, name, infrav1.HostIdentityReason, "")
		}
		g.Expect(append(first.Applied(), second.Applied()...)).To(BeEmpty())
		w.swap("10.0.0.1", "10.0.0.2", second, first)
		w.settle(m)
		g.Expect(w.machine("a").Spec.HostRef.Name).NotTo(BeEmpty(), "they are where they were")
	})
	t.Run("both in use", func(t *testing.T) {
		g := NewWithT(t)
		w, m, first := provisioned(t)
		second := w.addMachine("10.0.0.2")
		for _, object := range append(newMachine(t, "b"), newHost("h2", "10.0.0.2")) {
			g.Expect(w.client.Create(t.Context(), object)).To(Succeed())
		}
		w.settle(m)
		w.swap("10.0.0.1", "10.0.0.2", first, second)
		g.Eventually(func() infrav1.HostState { w.settle(m); return w.host("h1").Status.State }).Should(Equal(infrav1.HostError))
		for _, name := range []string{"h1", "h2"} {
			expectError(w, name, infrav1.HostIdentityReason, "Another machine than the host's answers")
		}
		w.remove(w.machine("a"))
		w.settle(m)
		g.Expect(append(first.Resets(), second.Resets()...)).To(BeEmpty(), "a release wipes the right machine or none")
	})
}

func TestBadInputNoInstallDiskFitsOrSeveralDo(t *testing.T) {
	small := talosclient.Disk{DevPath: "/dev/sda", SizeBytes: 20e9, Model: "USB STICK", Transport: "usb"}
	large := talosclient.Disk{DevPath: "/dev/nvme0n1", SizeBytes: 960e9, Model: "INTEL P4510", Transport: "nvme", Symlinks: []string{"/dev/disk/by-id/nvme-1"}}
	twin := talosclient.Disk{DevPath: "/dev/nvme1n1", SizeBytes: 960e9, Model: "INTEL P4510", Transport: "nvme"}
	const list = "h1 has /dev/sda (20 GB, usb, USB STICK), /dev/nvme0n1 (960 GB, nvme, INTEL P4510)"
	tests := map[string]struct {
		install infrav1.HostInstall
		disks   []talosclient.Disk
		because []string // because is empty when the host is claimed.
	}{
		"none is named":          {because: []string{"1 without an install disk named", list}},
		"a disk that it has":     {install: infrav1.HostInstall{Disk: "/dev/nvme0n1"}},
		"a link to one":          {install: infrav1.HostInstall{Disk: "/dev/disk/by-id/nvme-1"}},
		"a disk that it has not": {install: infrav1.HostInstall{Disk: "/dev/vda"}, because: []string{"1 without a disk that fits the install disk named", list}},
		"a selector for one":     {install: infrav1.HostInstall{DiskSelector: infrav1.HostDiskSelector{Model: "INTEL*", MinSizeGiB: ptr.To(int32(100))}}},
		"a selector for none":    {install: infrav1.HostInstall{DiskSelector: infrav1.HostDiskSelector{Model: "SAMSUNG*"}}, because: []string{"1 without a disk that fits the install disk named", list}},
		"a selector for several": {
			install: infrav1.HostInstall{DiskSelector: infrav1.HostDiskSelector{Type: infrav1.HostDiskNVMe}}, disks: []talosclient.Disk{twin},
			because: []string{"1 with several disks that fit the install disk selector", list + ", /dev/nvme1n1 (960 GB, nvme, INTEL P4510)"},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			w := newWorld(t, append(newMachine(t, "a"), newHost("h1", "10.0.0.1", func(h *infrav1.TalosHost) { h.Spec.Install = tt.install }))...)
			metal := w.addMachine("10.0.0.1")
			metal.Update(func(s *talosfake.State) { s.Hardware.Disks = append([]talosclient.Disk{small, large}, tt.disks...) })
			w.settle(w.manager())
			for _, because := range tt.because {
				expectNotClaimed(w, because)
			}
			g.Expect(metal.Applied()).To(HaveLen(map[bool]int{true: 1, false: 0}[len(tt.because) == 0]))
		})
	}
	t.Run("another disk came since it was claimed", func(t *testing.T) {
		g := NewWithT(t)
		w := newWorld(t, append(newMachine(t, "a"), newHost("h1", "10.0.0.1", func(h *infrav1.TalosHost) {
			h.Spec.Install = infrav1.HostInstall{DiskSelector: infrav1.HostDiskSelector{Type: infrav1.HostDiskNVMe}}
		}))...)
		metal := w.addMachine("10.0.0.1")
		metal.Update(func(s *talosfake.State) { s.Hardware.Disks = []talosclient.Disk{small, large} })
		w.beforeUpdate = func(client.Object) {
			metal.Update(func(s *talosfake.State) { s.Hardware.Disks = append(s.Hardware.Disks, twin) })
		}
		w.settle(w.manager())
		found := conditions.Get(w.machine("a"), infrav1.ConfigurationAppliedCondition)
		g.Expect(found.Reason).To(Equal(infrav1.InstallDiskUnfitReason))
		g.Expect(found.Message).To(ContainSubstring("names /dev/nvme0n1 (960 GB, nvme, INTEL P4510), /dev/nvme1n1"))
		g.Expect(metal.Applied()).To(BeEmpty())
	})
}

func TestBadInputTalosMachineDeletedWhileItsHostDoesNotAnswer(t *testing.T) {
	g := NewWithT(t)
	w, m, metal := provisioned(t)
	metal.SetSilent(true)
	w.remove(w.machine("a"))
	w.wait(time.Duration(infrav1.DefaultReleaseTimeoutSeconds-120) * time.Second)
	w.round(m)
	g.Expect(w.exists(&infrav1.TalosMachine{}, "a")).To(BeTrue(), "there is time left")
	w.wait(time.Duration(infrav1.DefaultReleaseTimeoutSeconds) * time.Second)
	w.settle(m)
	g.Expect(w.exists(&infrav1.TalosMachine{}, "a")).To(BeFalse(), "let go in time")
	expectError(w, "h1", infrav1.HostUnprovenReason, "The machine does not answer; it is wiped once it does")
	g.Expect(w.recorded()).To(ContainElement(HavePrefix("Warning ReleaseTimedOut ")))

	for _, object := range newMachine(t, "b") {
		g.Expect(w.client.Create(t.Context(), object)).To(Succeed())
	}
	w.settle(m)
	g.Expect(conditions.Get(w.machine("b"), infrav1.AllocatedCondition).Message).To(ContainSubstring("1 being released"))

	metal.SetSilent(false)
	w.settle(m)
	g.Expect(metal.Resets()).To(HaveLen(1), "reset when it comes back")
	g.Expect(w.machine("b").Spec.HostRef.Name).To(Equal("h1"))
}

func TestBadInputMaintenanceCertificateIsNotTheDemandedOne(t *testing.T) {
	t.Run("before the claim", func(t *testing.T) {
		g := NewWithT(t)
		w := newWorld(t, append(newMachine(t, "a"), newHost("h1", "10.0.0.1", func(h *infrav1.TalosHost) { h.Spec.MaintenanceCertFingerprint = "boot-0" }))...)
		metal := w.addMachine("10.0.0.1")
		m := w.manager()
		w.settle(m)
		expectNotClaimed(w, "1 with another maintenance certificate than demanded")
		expectError(w, "h1", infrav1.HostFingerprintReason, "nothing is sent to it")
		g.Expect(metal.Applied()).To(BeEmpty())

		change(w, w.host("h1"), func(h *infrav1.TalosHost) { h.Spec.MaintenanceCertFingerprint = "boot-1" })
		w.settle(m)
		g.Expect(metal.Applied()).To(HaveLen(1))
	})
	t.Run("after the claim", func(t *testing.T) {
		g := NewWithT(t)
		w := newWorld(t, append(newMachine(t, "a"), newHost("h1", "10.0.0.1", func(h *infrav1.TalosHost) { h.Spec.MaintenanceCertFingerprint = "boot-1" }))...)
		metal := w.addMachine("10.0.0.1")
		w.beforeUpdate = func(client.Object) { metal.boot(true, nil) }
		w.settle(w.manager())
		g.Expect(conditions.Get(w.machine("a"), infrav1.ConfigurationAppliedCondition).Reason).To(Equal(infrav1.FingerprintMismatchReason))
		expectError(w, "h1", infrav1.HostFingerprintReason, "nothing is sent to it")
		g.Expect(metal.Applied()).To(BeEmpty())
		g.Expect(w.host("h1").Spec.Handover).To(BeZero())
	})
}

// asControlPlane gives TalosMachine "a" the configuration of a control plane.
func (w *world) asControlPlane(contract string) {
	w.t.Helper()
	configuration, err := configgen.Render(configgen.Input{
		Role: configgen.RoleControlPlane, Contract: contract, ClusterName: testCluster, Endpoint: "https://10.0.0.100:6443",
		KubernetesVersion: "v1.36.3", Secrets: bundle(w.t).Machinery(), Hostname: "one-a",
	})
	NewWithT(w.t).Expect(err).NotTo(HaveOccurred())
	change(w, get(w, &corev1.Secret{}, "a"), func(s *corev1.Secret) { s.Data["value"] = configuration })
}

// expectNotHandedOver reports whether nothing went to the machine of host "h1", with
// the words of Talos.
func expectNotHandedOver(w *world, metal *bareMetal, words ...string) {
	w.t.Helper()
	g := NewWithT(w.t)
	found := conditions.Get(w.machine("a"), infrav1.ConfigurationAppliedCondition)
	g.Expect(found.Reason).To(Equal(infrav1.OverlayFailedReason))
	for _, word := range append(words, "TalosHost h1: strategicPatches of the host[0]") {
		g.Expect(found.Message).To(ContainSubstring(word))
	}
	g.Expect(conditions.Get(w.machine("a"), infrav1.ReadyCondition).Reason).To(Equal(infrav1.OverlayFailedReason))
	g.Expect(w.recorded()).To(ContainElement(HavePrefix("Warning NeedsAttention OverlayFailed: ")))
	g.Expect(metal.Applied()).To(BeEmpty())
	g.Expect(w.host("h1").Spec.Handover).To(BeZero())
}

func TestBadInputAHostPatchSetsTheHostNameOfAControlPlane(t *testing.T) {
	for name, patch := range map[string]string{
		"as a document":                      "apiVersion: v1alpha1\nkind: HostnameConfig\nhostname: mine\nauto: off\n",
		"as a section":                       "machine: {network: {hostname: mine}}",
		"by leaving it to Talos":             "apiVersion: v1alpha1\nkind: HostnameConfig\nauto: stable\n",
		"by deleting the document that says": "apiVersion: v1alpha1\nkind: HostnameConfig\n$patch: delete\n",
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, append(newMachine(t, "a"), newHost("h1", "10.0.0.1", func(h *infrav1.TalosHost) { h.Spec.StrategicPatches = []string{patch} }))...)
			w.asControlPlane("v1.13")
			metal := w.addMachine("10.0.0.1")
			m := w.manager()
			w.settle(m)
			expectNotHandedOver(w, metal)

			change(w, w.host("h1"), func(h *infrav1.TalosHost) { h.Spec.StrategicPatches = nil })
			w.settle(m)
			NewWithT(t).Expect(metal.Applied()).To(HaveLen(1))
		})
	}
}

func TestBadInputAHostPatchStatesASectionAndADocument(t *testing.T) {
	for name, tt := range map[string]struct {
		contract, release, patch string
		words                    []string
	}{
		"a section beside the document of the configuration": {
			contract: "v1.14", release: "v1.14.1", patch: "machine: {kubelet: {extraArgs: {v: \"2\"}}}", words: []string{"KubeletConfig", "v1alpha1"},
		},
		"a document beside the section of the configuration": {
			contract: "v1.13", release: "v1.14.1", patch: "apiVersion: v1alpha1\nkind: KubeletConfig\n", words: []string{"KubeletConfig", "v1alpha1"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, append(newMachine(t, "a"), newHost("h1", "10.0.0.1", func(h *infrav1.TalosHost) { h.Spec.StrategicPatches = []string{tt.patch} }))...)
			w.asControlPlane(tt.contract)
			metal := w.addMachine("10.0.0.1")
			metal.Update(func(s *talosfake.State) { s.Version = tt.release })
			w.settle(w.manager())
			expectNotHandedOver(w, metal, tt.words...)
		})
	}
}

// recorded are the events so far.
func (w *world) recorded() []string {
	for {
		select {
		case event := <-w.events.Events:
			w.noted = append(w.noted, strings.TrimSpace(event))
		default:
			return w.noted
		}
	}
}
