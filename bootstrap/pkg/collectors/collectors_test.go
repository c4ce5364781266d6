package collectors

import (
	"testing"

	. "github.com/onsi/gomega"
	"github.com/prometheus/client_golang/prometheus"
)

func TestTheLastCollectorIsShown(t *testing.T) {
	g := NewWithT(t)
	registry := prometheus.NewRegistry()
	gauge := func(name, help string, value float64) prometheus.Collector {
		made := prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
		made.Set(value)
		return made
	}
	for value := range 3 {
		g.Expect(Register(registry, gauge("hosts", "Hosts.", float64(value)), "hosts")).To(Succeed())
	}
	families, err := registry.Gather()
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(families).To(HaveLen(1))
	g.Expect(families[0].GetMetric()[0].GetGauge().GetValue()).To(BeEquivalentTo(2))

	g.Expect(Register(registry, gauge("hosts", "Other words.", 1), "hosts")).To(MatchError(ContainSubstring("registering the metrics of hosts")))
}

func TestJobsAreReadWhenTheMetricsAre(t *testing.T) {
	g := NewWithT(t)
	registry := prometheus.NewRegistry()
	running, waiting := 0, 0
	g.Expect(Register(registry, Several{Jobs("jobs", "Jobs.", func() (int, int) { return running, waiting })}, "jobs")).To(Succeed())
	running, waiting = 2, 5

	families, err := registry.Gather()
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(families).To(HaveLen(1))
	states := map[string]float64{}
	for _, metric := range families[0].GetMetric() {
		g.Expect(metric.GetLabel()).To(HaveLen(1))
		states[metric.GetLabel()[0].GetValue()] = metric.GetGauge().GetValue()
	}
	g.Expect(states).To(Equal(map[string]float64{"running": 2, "waiting": 5}))
}
