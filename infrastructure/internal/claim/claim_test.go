package claim

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/configgen"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/infrastructure/internal/installdisk"
)

var now = time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)

func host(name string, changes ...func(*infrav1.TalosHost)) *infrav1.TalosHost {
	h := &infrav1.TalosHost{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"pool": "a"}},
		Spec:       infrav1.TalosHostSpec{Addresses: []string{"192.0.2.1"}},
		Status: infrav1.TalosHostStatus{
			State:                      infrav1.HostAvailable,
			MaintenanceCertFingerprint: "boot-1",
			Hardware:                   infrav1.HostHardware{TalosVersion: "v1.13.9"},
		},
	}
	for _, change := range changes {
		change(h)
	}

	return h
}

func inDomain(domain string) func(*infrav1.TalosHost) {
	return func(h *infrav1.TalosHost) { h.Spec.FailureDomain = domain }
}

func quarantined(since time.Duration) func(*infrav1.TalosHost) {
	return func(h *infrav1.TalosHost) { h.Spec.Quarantine.Since = metav1.NewTime(now.Add(-since)) }
}

func withDisks(h *infrav1.TalosHost) {
	h.Status.Hardware.Disks = []infrav1.HostDisk{{DevPath: "/dev/vda", SizeBytes: ptr.To(int64(20e9)), Rotational: ptr.To(true)}}
}

func withMoreDisks(h *infrav1.TalosHost) {
	withDisks(h)
	h.Status.Hardware.DisksOmitted = ptr.To(int32(12))
}

func installed(h *infrav1.TalosHost) { h.Status.Hardware.Installed = ptr.To(true) }

func ofRelease(version string) func(*infrav1.TalosHost) {
	return func(h *infrav1.TalosHost) { h.Status.Hardware.TalosVersion = version }
}

func named(disk string) installdisk.Wish {
	wish, err := installdisk.OfHost(infrav1.HostInstall{Disk: disk}, configgen.InstallDocument)
	if err != nil {
		panic(err)
	}

	return wish
}

func TestJudge(t *testing.T) {
	tests := map[string]struct {
		change    func(*infrav1.TalosHost)
		request   Request
		rejection Rejection
	}{
		"a host in maintenance mode fits": {},
		"a host that is being deleted does not": {
			change:    func(h *infrav1.TalosHost) { h.DeletionTimestamp = &metav1.Time{Time: now} },
			rejection: Deleting,
		},
		"a host that clusterctl has moved away does not": {
			change:    func(h *infrav1.TalosHost) { h.Annotations = map[string]string{infrav1.DeleteForMoveAnnotation: ""} },
			rejection: Deleting,
		},
		"a host that the selector leaves out does not": {
			request:   Request{Selector: labels.SelectorFromSet(labels.Set{"pool": "b"})},
			rejection: NotSelected,
		},
		"a claimed host does not": {
			change:    func(h *infrav1.TalosHost) { h.Spec.ConsumerRef.Name = "other" },
			rejection: Claimed,
		},
		"a host that was handed over does not, even if nobody claims it": {
			change:    func(h *infrav1.TalosHost) { h.Spec.Handover.ProviderID = "talos://x" },
			rejection: Claimed,
		},
		"a host that is being released does not": {
			change:    func(h *infrav1.TalosHost) { h.Spec.Release.Policy = infrav1.ReleaseWipeSystem },
			rejection: Releasing,
		},
		"an unschedulable host does not": {
			change:    func(h *infrav1.TalosHost) { h.Spec.Unschedulable = ptr.To(true) },
			rejection: Unschedulable,
		},
		"a paused host does not": {
			change:    func(h *infrav1.TalosHost) { h.Annotations = map[string]string{clusterv1.PausedAnnotation: ""} },
			rejection: Paused,
		},
		"a host whose status is lost does not": {
			change:    func(h *infrav1.TalosHost) { h.Status = infrav1.TalosHostStatus{} },
			rejection: NotAvailable,
		},
		"a host of another failure domain does not where the domain is required": {
			change:    inDomain("b"),
			request:   Request{FailureDomain: "a", FailureDomainPolicy: infrav1.FailureDomainRequired},
			rejection: OtherFailureDomain,
		},
		"a host of another failure domain does where the domain is preferred": {
			change:  inDomain("b"),
			request: Request{FailureDomain: "a", FailureDomainPolicy: infrav1.FailureDomainPreferred},
		},
		"a host in quarantine does not": {change: quarantined(time.Minute), rejection: Quarantined},
		"a host does again after its quarantine": {
			change: quarantined(time.Hour),
		},
		"a host in another boot than demanded does not": {
			change:    func(h *infrav1.TalosHost) { h.Spec.MaintenanceCertFingerprint = "boot-0" },
			rejection: FingerprintMismatch,
		},
		"a contract newer than the host's release does not": {
			request:   Request{TalosContract: "v1.14"},
			rejection: ContractTooNew,
		},
		"a contract newer than the release to install does not": {
			request:   Request{TalosContract: "v1.13", TalosVersion: "v1.12.4"},
			rejection: ContractTooNew,
		},
		"a contract that cannot be read keeps nobody":       {request: Request{TalosContract: "x"}},
		"a host whose release cannot be read does":          {change: ofRelease("x"), request: Request{TalosContract: "v1.14"}},
		"a host whose release nobody knows does":            {change: ofRelease(""), request: Request{TalosContract: "v1.14", KubernetesVersion: "v1.42.0"}},
		"an installed host whose release nobody knows does": {change: func(h *infrav1.TalosHost) { installed(h); ofRelease("")(h) }, request: Request{TalosVersion: "v1.13.9"}},
		"a host that is claimed and being released is the last": {
			change: func(h *infrav1.TalosHost) {
				h.Spec.ConsumerRef.Name, h.Spec.Release.Policy = "other", infrav1.ReleaseWipeSystem
			},
			rejection: Releasing,
		},
		"a host of any failure domain does where none is wished": {change: inDomain("b"), request: Request{FailureDomainPolicy: infrav1.FailureDomainRequired}},
		"a host of the required failure domain does": {
			change: inDomain("a"), request: Request{FailureDomain: "a", FailureDomainPolicy: infrav1.FailureDomainRequired},
		},
		"a host that the selector picks does":                  {request: Request{Selector: labels.SelectorFromSet(labels.Set{"pool": "a"})}},
		"a host does not until the very end of its quarantine": {change: quarantined(time.Hour - time.Second), rejection: Quarantined},
		"a host does after a quarantine of its own": {
			change: func(h *infrav1.TalosHost) {
				quarantined(time.Minute)(h)
				h.Spec.HostRetryAfterSeconds = ptr.To(int32(60))
			},
		},
		"a host does not during a quarantine of its own": {
			change: func(h *infrav1.TalosHost) {
				quarantined(2 * time.Hour)(h)
				h.Spec.HostRetryAfterSeconds = ptr.To(int32(7201))
			},
			rejection: Quarantined,
		},
		"a host in the boot that is demanded does": {change: func(h *infrav1.TalosHost) { h.Spec.MaintenanceCertFingerprint = "boot-1" }},
		"a host that has told no certificate does": {
			change: func(h *infrav1.TalosHost) {
				h.Spec.MaintenanceCertFingerprint, h.Status.MaintenanceCertFingerprint = "boot-0", ""
			},
		},
		"a Kubernetes version that the release to install does not know does not": {
			request: Request{KubernetesVersion: "v1.36.3", TalosVersion: "v1.12.4"}, rejection: KubernetesUnfit,
		},
		"an older contract does": {request: Request{TalosContract: "v1.12"}},
		"a Kubernetes version that the release does not know does not": {
			request:   Request{KubernetesVersion: "v1.42.0"},
			rejection: KubernetesUnfit,
		},
		"a Kubernetes version that the release knows does": {request: Request{KubernetesVersion: "v1.36.3"}},
		"a host with another release installed does not": {
			change: installed, request: Request{TalosVersion: "v1.13.10"}, rejection: OtherRelease,
		},
		"a host with the wished release installed does": {change: installed, request: Request{TalosVersion: "v1.13.9"}},
		"an installed host does when none is wished":    {change: installed},
		"a container with another release does not": {
			change:  func(h *infrav1.TalosHost) { h.Status.Hardware.Platform = "container" },
			request: Request{TalosVersion: "v1.13.10"}, rejection: OtherRelease,
		},
		"a blank host with another release does":    {request: Request{TalosVersion: "v1.13.10"}},
		"a host with disks and none named does not": {change: withDisks, rejection: NoInstallDisk},
		"a host with more disks than it lists does not when the configuration names one": {
			change: withMoreDisks, request: Request{InstallDisk: named("/dev/vda")}, rejection: TooManyDisks,
		},
		"a host with more disks than it lists does when it names one itself": {
			change: func(h *infrav1.TalosHost) { withMoreDisks(h); h.Spec.Install.Disk = "/dev/vda" },
		},
		"a host whose selector the configuration cannot state does not": {
			change: func(h *infrav1.TalosHost) {
				withDisks(h)
				h.Spec.Install.DiskSelector = infrav1.HostDiskSelector{MinSizeGiB: ptr.To(int32(1)), MaxSizeGiB: ptr.To(int32(100))}
			},
			request: Request{InstallForm: configgen.InstallSection}, rejection: InstallDiskUnstated,
		},
		"a host with disks does when the configuration names one": {
			change:  withDisks,
			request: Request{InstallDisk: named("/dev/vda")},
		},
		"a host with disks does not when the configuration names another": {
			change:    withDisks,
			request:   Request{InstallDisk: named("/dev/sda")},
			rejection: InstallDiskMissing,
		},
		"a host with disks does when it selects one": {
			change: func(h *infrav1.TalosHost) {
				withDisks(h)
				h.Spec.Install.DiskSelector.Type = infrav1.HostDiskHDD
			},
		},
		"a host with disks does not when it selects none": {
			change: func(h *infrav1.TalosHost) {
				withDisks(h)
				h.Spec.Install.DiskSelector.Type = infrav1.HostDiskNVMe
			},
			request:   Request{InstallDisk: named("/dev/vda")},
			rejection: InstallDiskMissing,
		},
		"a host with disks does not when it selects several": {
			change: func(h *infrav1.TalosHost) {
				withDisks(h)
				h.Status.Hardware.Disks = append(h.Status.Hardware.Disks, infrav1.HostDisk{DevPath: "/dev/vdb", Rotational: ptr.To(true)})
				h.Spec.Install.DiskSelector.Type = infrav1.HostDiskHDD
			},
			rejection: InstallDiskUnclear,
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			h := host("h")
			if tt.change != nil {
				tt.change(h)
			}
			tt.request.Now = now
			NewWithT(t).Expect(Judge(h, tt.request)).To(Equal(tt.rejection))
		})
	}
}

func TestChoose(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))

	t.Run("picks any of the equals", func(t *testing.T) {
		g := NewWithT(t)
		picked := map[string]bool{}
		for range 100 {
			result := Choose([]*infrav1.TalosHost{host("a"), host("b"), host("c")}, Request{Now: now}, random)
			g.Expect(result.Host).NotTo(BeNil())
			picked[result.Host.Name] = true
		}
		g.Expect(picked).To(HaveLen(3))
	})
	t.Run("prefers the wished failure domain, but takes another", func(t *testing.T) {
		g := NewWithT(t)
		request := Request{FailureDomain: "one", FailureDomainPolicy: infrav1.FailureDomainPreferred, Now: now}
		for range 20 {
			result := Choose([]*infrav1.TalosHost{host("a", inDomain("two")), host("b", inDomain("one"))}, request, random)
			g.Expect(result.Host.Name).To(Equal("b"))
		}
		g.Expect(Choose([]*infrav1.TalosHost{host("a", inDomain("two"))}, request, random).Host.Name).To(Equal("a"))
	})
	t.Run("takes a host that was in quarantine last, even before another failure domain", func(t *testing.T) {
		g := NewWithT(t)
		request := Request{FailureDomain: "one", FailureDomainPolicy: infrav1.FailureDomainPreferred, Now: now}
		result := Choose([]*infrav1.TalosHost{host("a", inDomain("one"), quarantined(2*time.Hour)), host("b", inDomain("two"))}, request, random)
		g.Expect(result.Host.Name).To(Equal("b"))
	})
	t.Run("counts what keeps hosts from being claimed, in a fixed order", func(t *testing.T) {
		g := NewWithT(t)
		claimed := func(h *infrav1.TalosHost) { h.Spec.ConsumerRef.Name = "x" }
		result := Choose([]*infrav1.TalosHost{
			host("a", withDisks), host("b", claimed), host("c", claimed), host("d", quarantined(10*time.Minute)),
		}, Request{Now: now}, random)
		g.Expect(result.Host).To(BeNil())
		g.Expect(result.Message()).To(Equal("No TalosHost of 4 can be claimed: 2 claimed, 1 in quarantine, 1 without an install disk named" +
			"; set install.disk or install.diskSelector to exactly one: a has /dev/vda (20 GB)"))
		g.Expect(result.RetryAfter).To(Equal(50 * time.Minute))
	})
	t.Run("takes one of another failure domain before one that was in quarantine there, too", func(t *testing.T) {
		request := Request{FailureDomain: "one", FailureDomainPolicy: infrav1.FailureDomainPreferred, Now: now}
		before, elsewhere := quarantined(2*time.Hour), inDomain("two")
		wished, other := host("a", inDomain("one"), before), host("b", elsewhere, before)
		NewWithT(t).Expect(Choose([]*infrav1.TalosHost{other, wished}, request, random).Host.Name).To(Equal("a"))
		NewWithT(t).Expect(Choose([]*infrav1.TalosHost{other}, request, random).Host.Name).To(Equal("b"))
	})
	t.Run("waits for the quarantine that ends first", func(t *testing.T) {
		early, late := host("a", quarantined(40*time.Minute)), host("b", quarantined(10*time.Minute))
		for _, hosts := range [][]*infrav1.TalosHost{{early, late}, {late, early}} {
			NewWithT(t).Expect(Choose(hosts, Request{Now: now}, random).RetryAfter).To(Equal(20 * time.Minute))
		}
		NewWithT(t).Expect(Choose([]*infrav1.TalosHost{early, host("c")}, Request{Now: now}, random).RetryAfter).To(BeZero(), "one fits now")
	})
	t.Run("lists some hosts, and some of their disks", func(t *testing.T) {
		g := NewWithT(t)
		many := func(disks int) func(*infrav1.TalosHost) {
			return func(h *infrav1.TalosHost) {
				for range disks {
					h.Status.Hardware.Disks = append(h.Status.Hardware.Disks, infrav1.HostDisk{DevPath: "/dev/vd"})
				}
			}
		}
		message := func(hosts ...*infrav1.TalosHost) string { return Choose(hosts, Request{Now: now}, random).Message() }
		g.Expect(message(host("a", many(16)))).To(And(HaveSuffix("/dev/vd (0 GB)"), WithTransform(func(m string) int { return strings.Count(m, "/dev/vd") }, Equal(16))))
		g.Expect(message(host("a", many(17)))).To(And(HaveSuffix("/dev/vd (0 GB), ..."), WithTransform(func(m string) int { return strings.Count(m, "/dev/vd") }, Equal(16))))
		one := many(1)
		g.Expect(message(host("a", one), host("b", one), host("c", one))).To(HaveSuffix(": a has /dev/vd (0 GB); b has /dev/vd (0 GB); c has /dev/vd (0 GB)"))
		g.Expect(message(host("a", one), host("b", one), host("c", one), host("d", one))).To(HaveSuffix("; c has /dev/vd (0 GB); ..."))
	})
	t.Run("says which releases are installed", func(t *testing.T) {
		result := Choose([]*infrav1.TalosHost{host("a", installed)}, Request{Now: now, TalosVersion: "v1.13.10"}, random)
		NewWithT(t).Expect(result.Message()).To(And(ContainSubstring("1 with another Talos release installed than wished; "), HaveSuffix(": a has v1.13.9")))
	})
	t.Run("takes no provider ID that is in use", func(t *testing.T) {
		g := NewWithT(t)
		named := func(h *infrav1.TalosHost) { h.Spec.ProviderID = "cloud://7" }
		inUse := func(h *infrav1.TalosHost) { h.Spec.ConsumerRef.Name, h.Spec.ConsumerRef.ProviderID = "x", "cloud://7" }
		result := Choose([]*infrav1.TalosHost{host("a", named), host("b", named, inUse)}, Request{Now: now}, random)
		g.Expect(result.Host).To(BeNil())
		g.Expect(result.Message()).To(Equal("No TalosHost of 2 can be claimed: 1 claimed, 1 with the provider ID of another host in use"))
	})
	t.Run("takes no provider ID of a machine that is still being wiped", func(t *testing.T) {
		named := func(h *infrav1.TalosHost) { h.Spec.ProviderID = "cloud://7" }
		releasing := func(h *infrav1.TalosHost) {
			h.Spec.Handover.ProviderID, h.Spec.Release.Policy = "cloud://7", infrav1.ReleaseWipeSystem
		}
		result := Choose([]*infrav1.TalosHost{host("a", named), host("b", releasing)}, Request{Now: now}, random)
		NewWithT(t).Expect(result.Host).To(BeNil())
		NewWithT(t).Expect(result.Rejected[ProviderIDTaken]).To(HaveLen(1))
	})
	t.Run("says that there is no host at all", func(t *testing.T) {
		NewWithT(t).Expect(Choose(nil, Request{Now: now}, random).Message()).To(ContainSubstring("the namespace has none"))
	})
}
