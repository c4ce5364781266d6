// Package metrics tells what is known of hosts at the moment in which somebody
// asks. What no host is there for is not told.
package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/collectors"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
)

var states = []infrav1.HostState{
	infrav1.HostUnknown, infrav1.HostAvailable, infrav1.HostClaimed, infrav1.HostProvisioning, infrav1.HostProvisioned, infrav1.HostReleasing, infrav1.HostError,
}

// Hosts collects the metrics of hosts.
type Hosts struct {
	list     func() []infrav1.TalosHost
	answered func(*infrav1.TalosHost) (time.Time, bool)
	counts   *Counts

	contact, count, claims, releases *prometheus.Desc
}

var _ prometheus.Collector = &Hosts{}

// NewHosts returns a collector of what list returns. answered tells when the
// machine of a host has last answered, and false when that is not known. What is
// counted is shown of namespaces that have hosts.
func NewHosts(list func() []infrav1.TalosHost, answered func(*infrav1.TalosHost) (time.Time, bool), counts *Counts) *Hosts {
	return &Hosts{
		list: list, answered: answered, counts: counts,
		contact: prometheus.NewDesc("capi_talos_host_last_contact_timestamp_seconds",
			"When the machine of a TalosHost has last answered, in seconds since the epoch.", []string{"namespace", "host"}, nil),
		count: prometheus.NewDesc("capi_talos_hosts",
			"How many TalosHosts of a namespace are in a state.", []string{"namespace", "state"}, nil),
		claims: prometheus.NewDesc("capi_talos_host_claims_total",
			"How many claims of TalosHosts this process has made, by how they ended.", []string{"namespace", "result"}, nil),
		releases: prometheus.NewDesc("capi_talos_host_releases_total",
			"How many releases of TalosHosts this process has seen end, by how they ended.", []string{"namespace", "result"}, nil),
	}
}

// Register registers the collector, in place of one that a former manager of the
// same process has left.
func (h *Hosts) Register(registry prometheus.Registerer) error {
	return collectors.Register(registry, h, "TalosHosts")
}

// Describe implements prometheus.Collector.
func (h *Hosts) Describe(descriptions chan<- *prometheus.Desc) {
	descriptions <- h.contact
	descriptions <- h.count
	descriptions <- h.claims
	descriptions <- h.releases
}

// Collect implements prometheus.Collector.
func (h *Hosts) Collect(metrics chan<- prometheus.Metric) {
	counts := map[string]map[infrav1.HostState]int{}
	hosts := h.list()
	for i := range hosts {
		host := &hosts[i]
		if counts[host.Namespace] == nil {
			counts[host.Namespace] = map[infrav1.HostState]int{}
		}
		state := host.Status.State
		if state == "" {
			state = infrav1.HostUnknown
		}
		counts[host.Namespace][state]++
		if at, known := h.answered(host); known {
			metrics <- prometheus.MustNewConstMetric(h.contact, prometheus.GaugeValue, float64(at.Unix()), host.Namespace, host.Name)
		}
	}
	for namespace, count := range counts {
		for _, state := range states {
			metrics <- prometheus.MustNewConstMetric(h.count, prometheus.GaugeValue, float64(count[state]), namespace, string(state))
		}
		for _, result := range claimResults {
			metrics <- prometheus.MustNewConstMetric(h.claims, prometheus.CounterValue, float64(h.counts.Claims(namespace, result)), namespace, string(result))
		}
		for _, result := range releaseResults {
			metrics <- prometheus.MustNewConstMetric(h.releases, prometheus.CounterValue, float64(h.counts.Releases(namespace, result)), namespace, string(result))
		}
	}
}
