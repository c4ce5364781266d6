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
