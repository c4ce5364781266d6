package metrics_test

import (
	"strconv"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capi-talos/capi-talos/controlplane/internal/metrics"
)

func controlPlane(name string) metrics.ControlPlane {
	return metrics.ControlPlane{Key: client.ObjectKey{Namespace: "fleet", Name: name + "-cp"}, Cluster: name}
}

// gathered are all series of a registry as text, with their values.
func gathered(t *testing.T, registry *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := registry.Gather()
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	found := map[string]float64{}
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			name := family.GetName()
			for _, label := range metric.GetLabel() {
				name += " " + label.GetName() + "=" + label.GetValue()
			}
			found[name] = metric.GetGauge().GetValue() + metric.GetCounter().GetValue()
		}
	}

	return found
}

func TestCertificatesAreShownUntilTheirControlPlaneGoes(t *testing.T) {
	g := NewWithT(t)
	registry := prometheus.NewRegistry()
	recorder := metrics.New()
	g.Expect(recorder.Register(registry)).To(Succeed())
	g.Expect(gathered(t, registry)).To(BeEmpty())

	recorder.SetCertificates(controlPlane("one"), map[string]time.Time{
		metrics.CertificateEtcdCA: time.Unix(100, 5), metrics.CertificateKubeconfig: time.Unix(50, 0),
	})
	recorder.SetCertificates(controlPlane("two"), map[string]time.Time{metrics.CertificateEtcdCA: time.Unix(7, 0)})
	recorder.CountRenewal(controlPlane("one"), metrics.CertificateKubeconfig)
	recorder.CountRenewal(controlPlane("one"), metrics.CertificateKubeconfig)
	g.Expect(gathered(t, registry)).To(Equal(map[string]float64{
		"capi_talos_certificate_expiry_timestamp_seconds certificate=etcd-ca cluster=one namespace=fleet":    100,
		"capi_talos_certificate_expiry_timestamp_seconds certificate=kubeconfig cluster=one namespace=fleet": 50,
		"capi_talos_certificate_expiry_timestamp_seconds certificate=etcd-ca cluster=two namespace=fleet":    7,
		"capi_talos_certificate_renewals_total certificate=kubeconfig cluster=one namespace=fleet":           2,
	}))

	// What is no more is not shown any more.
	recorder.SetCertificates(controlPlane("one"), map[string]time.Time{metrics.CertificateEtcdCA: time.Unix(100, 0)})
	recorder.Forget(controlPlane("two").Key)
	g.Expect(gathered(t, registry)).To(Equal(map[string]float64{
		"capi_talos_certificate_expiry_timestamp_seconds certificate=etcd-ca cluster=one namespace=fleet": 100,
		"capi_talos_certificate_renewals_total certificate=kubeconfig cluster=one namespace=fleet":        2,
	}))
	recorder.Forget(controlPlane("one").Key)
	recorder.Forget(controlPlane("one").Key)
	g.Expect(gathered(t, registry)).To(BeEmpty())
}

func TestAControlPlaneOfAnotherClusterIsAnotherOne(t *testing.T) {
	g := NewWithT(t)
	registry := prometheus.NewRegistry()
	recorder := metrics.New()
	g.Expect(recorder.Register(registry)).To(Succeed())
	recorder.CountRenewal(controlPlane("one"), metrics.CertificateKubeconfig)
	other := controlPlane("one")
	other.Cluster = "other"

	recorder.SetCertificates(other, map[string]time.Time{metrics.CertificateEtcdCA: time.Unix(1, 0)})
	g.Expect(gathered(t, registry)).To(Equal(map[string]float64{
		"capi_talos_certificate_expiry_timestamp_seconds certificate=etcd-ca cluster=other namespace=fleet": 1,
	}))
}

func TestARecorderTakesThePlaceOfAFormerOne(t *testing.T) {
	g := NewWithT(t)
	registry := prometheus.NewRegistry()
	former, present := metrics.New(), metrics.New()
	g.Expect(former.Register(registry)).To(Succeed())
	former.CountRenewal(controlPlane("one"), metrics.CertificateKubeconfig)
	g.Expect(present.Register(registry)).To(Succeed())
	g.Expect(gathered(t, registry)).To(BeEmpty())
	g.Expect(present.Register(registry)).To(Succeed())

	taken := prometheus.NewRegistry()
	g.Expect(taken.Register(prometheus.NewGaugeVec(
		prometheus.GaugeOpts{Name: "capi_talos_certificate_expiry_timestamp_seconds"}, []string{"other"}))).To(Succeed())
	g.Expect(present.Register(taken)).NotTo(Succeed())
}

func TestPassesAndReadersDoNotDisturbEachOther(t *testing.T) {
	g := NewWithT(t)
	registry := prometheus.NewRegistry()
	recorder := metrics.New()
	g.Expect(recorder.Register(registry)).To(Succeed())
	const controlPlanes, passes = 8, 50
	var group sync.WaitGroup
	for i := range controlPlanes {
		group.Go(func() {
			of := controlPlane(strconv.Itoa(i))
			for pass := range passes {
				recorder.SetCertificates(of, map[string]time.Time{metrics.CertificateTalosCA: time.Unix(int64(pass), 0)})
				recorder.CountRenewal(of, metrics.CertificateTalosconfig)
			}
		})
	}
	for range passes {
		gathered(t, registry)
	}
	group.Wait()
	g.Expect(gathered(t, registry)).To(HaveLen(2 * controlPlanes))
}

func TestEtcdMachinesAndDecisionsAreShown(t *testing.T) {
	g := NewWithT(t)
	registry := prometheus.NewRegistry()
	recorder := metrics.New()
	g.Expect(recorder.Register(registry)).To(Succeed())

	recorder.SetEtcd(controlPlane("one"), metrics.Etcd{
		Answering: 2, Silent: 1, QuorumMargin: new(int), Alarms: map[string]int{"NOSPACE": 1},
		DatabaseSizes: map[string]int64{"one-a": 4096}, DatabaseQuotas: map[string]int64{"one-a": 8192},
	})
	recorder.SetMachines(controlPlane("one"), map[string]int{"wanted": 3})
	recorder.CountDecision(controlPlane("one"), "Stable")
	g.Expect(gathered(t, registry)).To(Equal(map[string]float64{
		"capi_talos_etcd_members cluster=one namespace=fleet state=answering":                2,
		"capi_talos_etcd_members cluster=one namespace=fleet state=silent":                   1,
		"capi_talos_etcd_members cluster=one namespace=fleet state=learner":                  0,
		"capi_talos_etcd_quorum_margin cluster=one namespace=fleet":                          0,
		"capi_talos_etcd_alarms alarm=NOSPACE cluster=one namespace=fleet":                   1,
		"capi_talos_etcd_database_size_bytes cluster=one machine=one-a namespace=fleet":      4096,
		"capi_talos_etcd_database_quota_bytes cluster=one machine=one-a namespace=fleet":     8192,
		"capi_talos_control_plane_machines cluster=one namespace=fleet state=wanted":         3,
		"capi_talos_control_plane_decisions_total action=Stable cluster=one namespace=fleet": 1,
	}))
	recorder.SetEtcd(controlPlane("one"), metrics.Etcd{})
	g.Expect(gathered(t, registry)).NotTo(HaveKey(ContainSubstring("NOSPACE")))
	g.Expect(gathered(t, registry)).NotTo(HaveKey(ContainSubstring("quorum_margin")))
}
