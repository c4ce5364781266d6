// Package metrics shows control planes to Prometheus. What is shown of a control
// plane is replaced as a whole, family by family, and goes with it: a member,
// Machine or certificate that is no more leaves no series behind.
//
// A further family is an entry in families and a method of Recorder like
// SetCertificates or CountRenewal.
package metrics

import (
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/collectors"
)

// Names of the families.
const (
	certificateExpiry   = "capi_talos_certificate_expiry_timestamp_seconds"
	certificateRenewals = "capi_talos_certificate_renewals_total"
	etcdMembers         = "capi_talos_etcd_members"
	etcdQuorumMargin    = "capi_talos_etcd_quorum_margin"
	etcdAlarms          = "capi_talos_etcd_alarms"
	etcdDatabaseSize    = "capi_talos_etcd_database_size_bytes"
	etcdDatabaseQuota   = "capi_talos_etcd_database_quota_bytes"
	machines            = "capi_talos_control_plane_machines"
	decisions           = "capi_talos_control_plane_decisions_total"
)

// Values of the label certificate.
const (
	// CertificateKubernetesCA is the CA of the Kubernetes API.
	CertificateKubernetesCA = "kubernetes-ca"
	// CertificateAggregatorCA is the CA of the front proxy of the Kubernetes API.
	CertificateAggregatorCA = "aggregator-ca"
	// CertificateEtcdCA is the CA of etcd.
	CertificateEtcdCA = "etcd-ca"
	// CertificateTalosCA is the CA of the Talos API.
	CertificateTalosCA = "talos-ca"
	// CertificateKubeconfig is the client certificate in <cluster>-kubeconfig.
	CertificateKubeconfig = "kubeconfig"
	// CertificateTalosconfig is the client certificate in <cluster>-talosconfig.
	CertificateTalosconfig = "talosconfig"
)

// family is a metric with all of its series.
type family struct {
	help string
	// labels are those beyond namespace and cluster.
	labels []string
	kind   prometheus.ValueType
}

func families() map[string]family {
	return map[string]family{
		certificateExpiry: {
			help:   "When a certificate of the cluster expires, in seconds since 1970.",
			labels: []string{"certificate"},
			kind:   prometheus.GaugeValue,
		},
		certificateRenewals: {
			help:   "How often a client certificate of the cluster was renewed by this process.",
			labels: []string{"certificate"},
			kind:   prometheus.CounterValue,
		},
		etcdMembers: {
			help:   "Members of etcd by their state: answering, silent or learner.",
			labels: []string{"state"},
			kind:   prometheus.GaugeValue,
		},
		etcdQuorumMargin: {
			help: "How many of the voting members that answer may be lost before etcd loses its majority; negative once it is lost.",
			kind: prometheus.GaugeValue,
		},
		etcdAlarms: {
			help:   "Alarms that are raised in etcd, by kind.",
			labels: []string{"alarm"},
			kind:   prometheus.GaugeValue,
		},
		etcdDatabaseSize: {
			help:   "Size of a member's database on disk.",
			labels: []string{"machine"},
			kind:   prometheus.GaugeValue,
		},
		etcdDatabaseQuota: {
			help:   "Limit of a member's database; without a series it has none, or nobody knows it.",
			labels: []string{"machine"},
			kind:   prometheus.GaugeValue,
		},
		machines: {
			help:   "Control plane Machines: wanted, present, up_to_date and deleting.",
			labels: []string{"state"},
			kind:   prometheus.GaugeValue,
		},
		decisions: {
			help:   "How often this process decided to do, or to wait for, something else than before.",
			labels: []string{"action"},
			kind:   prometheus.CounterValue,
		},
	}
}

// Etcd is what is shown of an etcd cluster.
type Etcd struct {
	// Answering and Silent are numbers of voting members, Learners of the others.
	Answering, Silent, Learners int
	// QuorumMargin is how many voting members may be lost; nil while there never was
	// a quorum to lose.
	QuorumMargin *int
	// Alarms counts alarms by kind.
	Alarms map[string]int
	// DatabaseSizes and DatabaseQuotas are bytes by the name of the Machine.
	DatabaseSizes, DatabaseQuotas map[string]int64
}

// SetEtcd shows the state of etcd.
func (r *Recorder) SetEtcd(of ControlPlane, etcd Etcd) {
	r.set(of, etcdMembers, numbers(map[string]int{"answering": etcd.Answering, "silent": etcd.Silent, "learner": etcd.Learners}))
	var margin []sample
	if etcd.QuorumMargin != nil {
		margin = []sample{{value: float64(*etcd.QuorumMargin)}}
	}
	r.set(of, etcdQuorumMargin, margin)
	r.set(of, etcdAlarms, numbers(etcd.Alarms))
	r.set(of, etcdDatabaseSize, numbers(etcd.DatabaseSizes))
	r.set(of, etcdDatabaseQuota, numbers(etcd.DatabaseQuotas))
}

// SetMachines shows how many Machines there are, by the value of the label state.
func (r *Recorder) SetMachines(of ControlPlane, counts map[string]int) {
	r.set(of, machines, numbers(counts))
}

// CountDecision counts a decision that differs from the one before.
func (r *Recorder) CountDecision(of ControlPlane, action string) {
	r.count(of, decisions, action)
}

// numbers are the samples of a family with one label.
func numbers[N int | int64](values map[string]N) []sample {
	samples := make([]sample, 0, len(values))
	for label, value := range values {
		samples = append(samples, sample{labels: []string{label}, value: float64(value)})
	}

	return samples
}

// ControlPlane names what is shown.
type ControlPlane struct {
	// Key is the key of the TalosControlPlane.
	Key client.ObjectKey
	// Cluster is the name of its Cluster.
	Cluster string
}

// sample is one series of a family.
type sample struct {
	// labels are the values of the family's labels, in its order.
	labels []string
	value  float64
}

// Recorder keeps what is shown. It is a prometheus.Collector, and safe for
// concurrent use.
type Recorder struct {
	families map[string]family
	descs    map[string]*prometheus.Desc

	mu    sync.Mutex
	shown map[client.ObjectKey]shown
}

// shown is what is shown of one control plane, by the name of the family.
type shown struct {
	cluster string
	samples map[string][]sample
}

// New makes a Recorder that shows nothing yet, to nobody.
func New() *Recorder {
	r := &Recorder{families: families(), descs: map[string]*prometheus.Desc{}, shown: map[client.ObjectKey]shown{}}
	for name, family := range r.families {
		r.descs[name] = prometheus.NewDesc(name, family.help, append([]string{"namespace", "cluster"}, family.labels...), nil)
	}

	return r
}

// Register registers the Recorder, in place of one that a former manager of the
// same process has left.
func (r *Recorder) Register(registry prometheus.Registerer) error {
	return collectors.Register(registry, r, "control planes")
}

// SetCertificates shows when certificates expire, by the value of the label
// certificate.
func (r *Recorder) SetCertificates(of ControlPlane, expiries map[string]time.Time) {
	samples := make([]sample, 0, len(expiries))
	for certificate, at := range expiries {
		samples = append(samples, sample{labels: []string{certificate}, value: float64(at.Unix())})
	}
	r.set(of, certificateExpiry, samples)
}

// count adds one to a counter of a control plane.
func (r *Recorder) count(of ControlPlane, name string, labels ...string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	samples := r.of(of).samples
	for i := range samples[name] {
		if slices.Equal(samples[name][i].labels, labels) {
			samples[name][i].value++
			return
		}
	}
	samples[name] = append(samples[name], sample{labels: labels, value: 1})
}

// Forget shows nothing of a control plane any more.
func (r *Recorder) Forget(controlPlane client.ObjectKey) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.shown, controlPlane)
}

// CountRenewal counts that a client certificate was made anew.
func (r *Recorder) CountRenewal(of ControlPlane, certificate string) {
	r.count(of, certificateRenewals, certificate)
}

// set replaces what a family shows of a control plane.
func (r *Recorder) set(of ControlPlane, name string, samples []sample) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.of(of).samples[name] = samples
}

// of is what is shown of a control plane. A control plane that belongs to
// another Cluster than before is another one.
func (r *Recorder) of(controlPlane ControlPlane) shown {
	found, known := r.shown[controlPlane.Key]
	if !known || found.cluster != controlPlane.Cluster {
		found = shown{cluster: controlPlane.Cluster, samples: map[string][]sample{}}
		r.shown[controlPlane.Key] = found
	}

	return found
}

// Describe implements prometheus.Collector.
func (r *Recorder) Describe(into chan<- *prometheus.Desc) {
	for _, desc := range r.descs {
		into <- desc
	}
}

// Collect implements prometheus.Collector.
func (r *Recorder) Collect(into chan<- prometheus.Metric) {
	for _, metric := range r.collect() {
		into <- metric
	}
}

// collect does not wait for whoever reads, because passes wait for it.
func (r *Recorder) collect() []prometheus.Metric {
	r.mu.Lock()
	defer r.mu.Unlock()
	var metrics []prometheus.Metric
	for key, shown := range r.shown {
		for name, samples := range shown.samples {
			for _, sample := range samples {
				labels := append([]string{key.Namespace, shown.cluster}, sample.labels...)
				metric, err := prometheus.NewConstMetric(r.descs[name], r.families[name].kind, sample.value, labels...)
				if err != nil {
					metric = prometheus.NewInvalidMetric(r.descs[name], err)
				}
				metrics = append(metrics, metric)
			}
		}
	}

	return metrics
}
