package controllers_test

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	bootstrapv1 "github.com/capi-talos/capi-talos/bootstrap/api/v1beta1"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
	talosfake "github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient/fake"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/infrastructure/internal/credentials"
	"github.com/capi-talos/capi-talos/infrastructure/internal/harness"
)

// expectNotClaimed reports whether TalosMachine "a" waits, and why.
func expectNotClaimed(w *harness.Environment, because string) {
	w.T.Helper()
	g := NewWithT(w.T)
	found := conditions.Get(w.Machine("a"), infrav1.AllocatedCondition)
	g.Expect(found.Reason).To(Equal(infrav1.NoHostFitsReason))
	g.Expect(found.Message).To(ContainSubstring(because))
	g.Expect(w.Host("h1").Spec.ConsumerRef).To(BeZero())
	g.Expect(w.Recorded()).To(ContainElement(HavePrefix("Warning NeedsAttention NoHostFits: ")))
}

func TestBadInputContractNewerThanTheReleaseOfTheHost(t *testing.T) {
	g := NewWithT(t)
	w := harness.New(t, append(harness.NewMachine(t, "a"), harness.NewHost("h1", "10.0.0.1"), &bootstrapv1.TalosConfig{
		ObjectMeta: metav1.ObjectMeta{Namespace: harness.TestNamespace, Name: "a"}, Spec: bootstrapv1.TalosConfigSpec{TalosVersion: "v1.14"},
	})...)
	harness.Change(w, harness.Get(w, &clusterv1.Machine{}, "a"), func(m *clusterv1.Machine) {
		m.Spec.Bootstrap.ConfigRef = clusterv1.ContractVersionedObjectReference{APIGroup: bootstrapv1.GroupVersion.Group, Kind: "TalosConfig", Name: "a"}
	})
	metal := w.AddMachine("10.0.0.1")
	m := w.Manager()
	w.Settle(m)
	expectNotClaimed(w, "1 with a Talos release older than the contract of the machine configuration")
	g.Expect(metal.Applied()).To(BeEmpty())

	metal.Update(func(s *talosfake.State) { s.Version = "v1.14.1" })
	metal.Boot(true, nil)
	w.Settle(m)
	g.Expect(w.Machine("a").Spec.HostRef.Name).To(Equal("h1"))
}

func TestBadInputKubernetesVersionThatTheReleaseOfTheHostDenies(t *testing.T) {
	w := harness.New(t, append(harness.NewMachine(t, "a"), harness.NewHost("h1", "10.0.0.1"))...)
	harness.Change(w, harness.Get(w, &clusterv1.Machine{}, "a"), func(m *clusterv1.Machine) { m.Spec.Version = "v1.42.0" })
	metal := w.AddMachine("10.0.0.1")
	w.Settle(w.Manager())
	expectNotClaimed(w, "1 with a Talos release that does not support the Kubernetes version")
	NewWithT(t).Expect(metal.Applied()).To(BeEmpty())
}

func TestBadInputTwoHostsWithOneAddress(t *testing.T) {
	g := NewWithT(t)
	w, m, metal := harness.Provisioned(t)
	calls := w.Asked["10.0.0.1"]
	g.Expect(w.Client.Create(t.Context(), harness.NewHost("h2", "10.0.0.1", func(h *infrav1.TalosHost) {
		h.Spec.AdoptionPolicy, h.Spec.AdoptionSecretRef.Name = infrav1.AdoptionWipeForeign, credentials.AdminName("h1")
	}))).To(Succeed())
	before := w.Host("h1").ResourceVersion
	w.Settle(m)
	harness.ExpectError(w, "h2", infrav1.HostIdentityReason, "TalosHost h1 stands for the same machine or names the same address")
	g.Expect(conditions.Get(w.Host("h2"), infrav1.IdentityVerifiedCondition).Reason).To(Equal(infrav1.IdentityDuplicateReason))
	g.Expect(w.Host("h1").ResourceVersion).To(Equal(before), "the first is untouched")
	g.Expect(w.Host("h1").Status.State).To(Equal(infrav1.HostProvisioned))
	g.Expect(metal.Resets()).To(BeEmpty(), "its adoption would wipe the first one's machine")
	g.Expect(w.Asked["10.0.0.1"]).To(Equal(calls), "the machine is not even asked")
}

func TestBadInputTwoHostsWithOneIdentity(t *testing.T) {
	t.Run("both free", func(t *testing.T) {
		g := NewWithT(t)
		w := harness.New(t, harness.NewHost("h1", "10.0.0.1"), harness.NewHost("h2", "10.0.0.2"))
		metal := w.AddMachine("10.0.0.1")
		w.Dialer.Add("10.0.0.2", metal.Machine)
		m := w.Manager()
		w.Settle(m)
		g.Expect(w.Host("h1").Status.State).To(Equal(infrav1.HostAvailable))
		harness.ExpectError(w, "h2", infrav1.HostIdentityReason, "TalosHost h1 stands for the same machine")

		w.Remove(w.Host("h1"))
		w.Settle(m)
		g.Expect(w.Host("h2").Status.State).To(Equal(infrav1.HostAvailable), "the other one is gone")
	})
	t.Run("the first in use, and the second may adopt", func(t *testing.T) {
		g := NewWithT(t)
		w, m, metal := harness.Provisioned(t)
		w.Dialer.Add("10.0.0.2", metal.Machine)
		w.AddTalosconfig("theirs")
		g.Expect(w.Client.Create(t.Context(), harness.NewHost("h2", "10.0.0.2", harness.AdoptWith("theirs")))).To(Succeed())
		w.Settle(m)
		harness.ExpectError(w, "h2", infrav1.HostIdentityReason, "TalosHost h1 stands for the same machine")
		g.Expect(w.Host("h1").Status.State).To(Equal(infrav1.HostProvisioned))
		g.Expect(metal.Resets()).To(BeEmpty())
	})
	t.Run("claimed in one moment", func(t *testing.T) {
		g := NewWithT(t)
		w, m, _ := harness.Provisioned(t)
		for _, object := range append(harness.NewMachine(t, "b"), harness.NewHost("h2", "10.0.0.2")) {
			g.Expect(w.Client.Create(t.Context(), object)).To(Succeed())
		}
		other := w.AddMachine("10.0.0.2")
		w.BeforeUpdate = func(object client.Object) {
			g.Expect(object.GetName()).To(Equal("h2"), "the finalizer is patched, so the first update is the claim")
			harness.Change(w, w.Host("h1"), func(h *infrav1.TalosHost) {
				h.Spec.Handover.Identity = infrav1.HostIdentity{UUID: other.Snapshot().Hardware.SystemUUID}
			})
		}
		w.Settle(m)
		found := conditions.Get(w.Machine("b"), infrav1.ConfigurationAppliedCondition)
		g.Expect(found.Reason).To(Equal(infrav1.HostDuplicateReason))
		g.Expect(found.Message).To(ContainSubstring("TalosHost h1 is in use"))
		g.Expect(other.Applied()).To(BeEmpty())
		harness.ExpectError(w, "h2", infrav1.HostIdentityReason, "TalosHost h1 is in use")
	})
}

func TestBadInputAHostAnswersWithAnotherIdentityThanBefore(t *testing.T) {
	t.Run("a free one", func(t *testing.T) {
		g := NewWithT(t)
		w := harness.New(t, harness.NewHost("h1", "10.0.0.1"))
		metal := w.AddMachine("10.0.0.1")
		m := w.Manager()
		w.Settle(m)
		metal.Update(func(s *talosfake.State) { s.Hardware.SystemUUID = "4c4c4544-0042-3510-8053-b4c04f4d4e99" })
		metal.Boot(true, nil)
		for _, object := range harness.NewMachine(t, "a") {
			g.Expect(w.Client.Create(t.Context(), object)).To(Succeed())
		}
		w.Settle(m)
		harness.ExpectError(w, "h1", infrav1.HostIdentityReason, "Another machine than the host's answers at 10.0.0.1; nothing is sent to it")
		expectNotClaimed(w, "1 not available")
		g.Expect(metal.Applied()).To(BeEmpty())

		harness.Change(w, w.Host("h1"), func(h *infrav1.TalosHost) {
			metav1.SetMetaDataAnnotation(&h.ObjectMeta, infrav1.HostRetryAnnotation, "")
		})
		w.Settle(m)
		g.Expect(w.Machine("a").Spec.HostRef.Name).To(Equal("h1"), "a person has said that it is the right one")
	})
	t.Run("one in use", func(t *testing.T) {
		g := NewWithT(t)
		w, m, metal := harness.Provisioned(t)
		metal.SetSilent(true)
		stranger := w.AddMachine("10.0.0.1")
		stranger.Update(func(s *talosfake.State) { s.Hardware.SystemUUID = "4c4c4544-0042-3510-8053-b4c04f4d4e99" })
		w.Settle(m)
		harness.ExpectError(w, "h1", infrav1.HostIdentityReason, "Another machine than the host's answers")
		g.Expect(conditions.Get(w.Machine("a"), infrav1.RunningCondition).Reason).To(Equal(infrav1.HostIdentityMismatchReason))
		g.Expect(w.Recorded()).To(ContainElement(HavePrefix("Warning NeedsAttention IdentityMismatch: ")))

		w.Remove(w.Machine("a"))
		w.Settle(m)
		g.Expect(stranger.Applied()).To(BeEmpty())
		g.Expect(stranger.Resets()).To(BeEmpty())

		metal.SetSilent(false)
		w.Dialer.Add("10.0.0.1", metal.Machine)
		w.Settle(m)
		harness.ExpectFree(w, "h1")
	})
	t.Run("one in use, by a machine of another cluster", func(t *testing.T) {
		g := NewWithT(t)
		w, m, metal := harness.Provisioned(t)
		metal.SetSilent(true)
		stranger := w.AddMachine("10.0.0.1")
		stranger.Boot(false, []byte("theirs"))
		w.Settle(m)
		harness.ExpectError(w, "h1", infrav1.HostForeignReason, "The machine that answers belongs to another cluster; nothing is sent to it")
		w.Dialer.Add("10.0.0.1", metal.Machine)
		metal.SetSilent(false)
		w.Settle(m)
		g.Expect(w.Host("h1").Status.State).To(Equal(infrav1.HostProvisioned), "it is back")
		g.Expect(conditions.IsTrue(w.Machine("a"), infrav1.ReadyCondition)).To(BeTrue())
	})
}

func TestBadInputTwoHostsSwappedAddresses(t *testing.T) {
	t.Run("both free", func(t *testing.T) {
		g := NewWithT(t)
		w := harness.New(t, harness.NewHost("h1", "10.0.0.1"), harness.NewHost("h2", "10.0.0.2"))
		first, second := w.AddMachine("10.0.0.1"), w.AddMachine("10.0.0.2")
		m := w.Manager()
		w.Settle(m)
		w.Swap("10.0.0.1", "10.0.0.2", first, second)
		for _, object := range harness.NewMachine(t, "a") {
			g.Expect(w.Client.Create(t.Context(), object)).To(Succeed())
		}
		for _, name := range []string{"h1", "h2"} {
			g.Eventually(func() infrav1.HostState { w.Settle(m); return w.Host(name).Status.State }).Should(Equal(infrav1.HostError))
			harness.ExpectError(w, name, infrav1.HostIdentityReason, "")
		}
		g.Expect(append(first.Applied(), second.Applied()...)).To(BeEmpty())
		w.Swap("10.0.0.1", "10.0.0.2", second, first)
		w.Settle(m)
		g.Expect(w.Machine("a").Spec.HostRef.Name).NotTo(BeEmpty(), "they are where they were")
	})
	t.Run("both in use", func(t *testing.T) {
		g := NewWithT(t)
		w, m, first := harness.Provisioned(t)
		second := w.AddMachine("10.0.0.2")
		for _, object := range append(harness.NewMachine(t, "b"), harness.NewHost("h2", "10.0.0.2")) {
			g.Expect(w.Client.Create(t.Context(), object)).To(Succeed())
		}
		w.Settle(m)
		w.Swap("10.0.0.1", "10.0.0.2", first, second)
		for _, name := range []string{"h1", "h2"} {
			g.Eventually(func() infrav1.HostState { w.Settle(m); return w.Host(name).Status.State }).Should(Equal(infrav1.HostError))
			harness.ExpectError(w, name, infrav1.HostIdentityReason, "Another machine than the host's answers")
		}
		w.Remove(w.Machine("a"))
		w.Settle(m)
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
			w := harness.New(t, append(harness.NewMachine(t, "a"), harness.NewHost("h1", "10.0.0.1", func(h *infrav1.TalosHost) { h.Spec.Install = tt.install }))...)
			metal := w.AddMachine("10.0.0.1")
			metal.Update(func(s *talosfake.State) { s.Hardware.Disks = append([]talosclient.Disk{small, large}, tt.disks...) })
			w.Settle(w.Manager())
			for _, because := range tt.because {
				expectNotClaimed(w, because)
			}
			g.Expect(metal.Applied()).To(HaveLen(map[bool]int{true: 1, false: 0}[len(tt.because) == 0]))
		})
	}
	t.Run("another disk came since it was claimed", func(t *testing.T) {
		g := NewWithT(t)
		w := harness.New(t, append(harness.NewMachine(t, "a"), harness.NewHost("h1", "10.0.0.1", func(h *infrav1.TalosHost) {
			h.Spec.Install = infrav1.HostInstall{DiskSelector: infrav1.HostDiskSelector{Type: infrav1.HostDiskNVMe}}
		}))...)
		metal := w.AddMachine("10.0.0.1")
		metal.Update(func(s *talosfake.State) { s.Hardware.Disks = []talosclient.Disk{small, large} })
		w.BeforeUpdate = func(client.Object) {
			metal.Update(func(s *talosfake.State) { s.Hardware.Disks = append(s.Hardware.Disks, twin) })
		}
		w.Settle(w.Manager())
		found := conditions.Get(w.Machine("a"), infrav1.ConfigurationAppliedCondition)
		g.Expect(found.Reason).To(Equal(infrav1.InstallDiskUnfitReason))
		g.Expect(found.Message).To(ContainSubstring("names /dev/nvme0n1 (960 GB, nvme, INTEL P4510), /dev/nvme1n1"))
		g.Expect(metal.Applied()).To(BeEmpty())
	})
}

func TestBadInputTalosMachineDeletedWhileItsHostDoesNotAnswer(t *testing.T) {
	g := NewWithT(t)
	w, m, metal := harness.Provisioned(t)
	metal.SetSilent(true)
	w.Remove(w.Machine("a"))
	w.Wait(time.Duration(infrav1.DefaultReleaseTimeoutSeconds-120) * time.Second)
	w.Round(m)
	g.Expect(w.Exists(&infrav1.TalosMachine{}, "a")).To(BeTrue(), "there is time left")
	w.Wait(time.Duration(infrav1.DefaultReleaseTimeoutSeconds) * time.Second)
	w.Settle(m)
	g.Expect(w.Exists(&infrav1.TalosMachine{}, "a")).To(BeFalse(), "let go in time")
	harness.ExpectError(w, "h1", infrav1.HostUnprovenReason, "The machine does not answer; it is wiped once it does")
	g.Expect(w.Recorded()).To(ContainElement(HavePrefix("Warning ReleaseTimedOut ")))

	for _, object := range harness.NewMachine(t, "b") {
		g.Expect(w.Client.Create(t.Context(), object)).To(Succeed())
	}
	w.Settle(m)
	g.Expect(conditions.Get(w.Machine("b"), infrav1.AllocatedCondition).Message).To(ContainSubstring("1 being released"))

	metal.SetSilent(false)
	w.Settle(m)
	g.Expect(metal.Resets()).To(HaveLen(1), "reset when it comes back")
	g.Expect(w.Machine("b").Spec.HostRef.Name).To(Equal("h1"))
}

func TestBadInputMaintenanceCertificateIsNotTheDemandedOne(t *testing.T) {
	t.Run("before the claim", func(t *testing.T) {
		g := NewWithT(t)
		w := harness.New(t, append(harness.NewMachine(t, "a"), harness.NewHost("h1", "10.0.0.1", func(h *infrav1.TalosHost) { h.Spec.MaintenanceCertFingerprint = "boot-0" }))...)
		metal := w.AddMachine("10.0.0.1")
		m := w.Manager()
		w.Settle(m)
		expectNotClaimed(w, "1 with another maintenance certificate than demanded")
		harness.ExpectError(w, "h1", infrav1.HostFingerprintReason, "nothing is sent to it")
		g.Expect(metal.Applied()).To(BeEmpty())

		harness.Change(w, w.Host("h1"), func(h *infrav1.TalosHost) { h.Spec.MaintenanceCertFingerprint = "boot-1" })
		w.Settle(m)
		g.Expect(metal.Applied()).To(HaveLen(1))
	})
	t.Run("after the claim", func(t *testing.T) {
		g := NewWithT(t)
		w := harness.New(t, append(harness.NewMachine(t, "a"), harness.NewHost("h1", "10.0.0.1", func(h *infrav1.TalosHost) { h.Spec.MaintenanceCertFingerprint = "boot-1" }))...)
		metal := w.AddMachine("10.0.0.1")
		w.BeforeUpdate = func(client.Object) { metal.Boot(true, nil) }
		w.Settle(w.Manager())
		g.Expect(conditions.Get(w.Machine("a"), infrav1.ConfigurationAppliedCondition).Reason).To(Equal(infrav1.FingerprintMismatchReason))
		harness.ExpectError(w, "h1", infrav1.HostFingerprintReason, "nothing is sent to it")
		g.Expect(metal.Applied()).To(BeEmpty())
		g.Expect(w.Host("h1").Spec.Handover).To(BeZero())
	})
}

// expectNotHandedOver reports whether nothing went to the machine of host "h1", with
// the words of Talos.
func expectNotHandedOver(w *harness.Environment, metal *harness.BareMetal, words ...string) {
	w.T.Helper()
	g := NewWithT(w.T)
	found := conditions.Get(w.Machine("a"), infrav1.ConfigurationAppliedCondition)
	g.Expect(found.Reason).To(Equal(infrav1.OverlayFailedReason))
	for _, word := range append(words, "TalosHost h1: strategicPatches of the host[0]") {
		g.Expect(found.Message).To(ContainSubstring(word))
	}
	g.Expect(conditions.Get(w.Machine("a"), infrav1.ReadyCondition).Reason).To(Equal(infrav1.OverlayFailedReason))
	g.Expect(w.Recorded()).To(ContainElement(HavePrefix("Warning NeedsAttention OverlayFailed: ")))
	g.Expect(metal.Applied()).To(BeEmpty())
	g.Expect(w.Host("h1").Spec.Handover).To(BeZero())
}

func TestBadInputAHostPatchSetsTheHostNameOfAControlPlane(t *testing.T) {
	for name, patch := range map[string]string{
		"as a document":                      "apiVersion: v1alpha1\nkind: HostnameConfig\nhostname: mine\nauto: off\n",
		"as a section":                       "machine: {network: {hostname: mine}}",
		"by leaving it to Talos":             "apiVersion: v1alpha1\nkind: HostnameConfig\nauto: stable\n",
		"by deleting the document that says": "apiVersion: v1alpha1\nkind: HostnameConfig\n$patch: delete\n",
	} {
		t.Run(name, func(t *testing.T) {
			w := harness.New(t, append(harness.NewMachine(t, "a"), harness.NewHost("h1", "10.0.0.1", func(h *infrav1.TalosHost) { h.Spec.StrategicPatches = []string{patch} }))...)
			w.AsControlPlane("v1.13")
			metal := w.AddMachine("10.0.0.1")
			m := w.Manager()
			w.Settle(m)
			expectNotHandedOver(w, metal)

			harness.Change(w, w.Host("h1"), func(h *infrav1.TalosHost) { h.Spec.StrategicPatches = nil })
			w.Settle(m)
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
			w := harness.New(t, append(harness.NewMachine(t, "a"), harness.NewHost("h1", "10.0.0.1", func(h *infrav1.TalosHost) { h.Spec.StrategicPatches = []string{tt.patch} }))...)
			w.AsControlPlane(tt.contract)
			metal := w.AddMachine("10.0.0.1")
			metal.Update(func(s *talosfake.State) { s.Version = tt.release })
			w.Settle(w.Manager())
			expectNotHandedOver(w, metal, tt.words...)
		})
	}
}
