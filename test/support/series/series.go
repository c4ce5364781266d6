// Package series reads metrics in tests.
package series

import (
	"fmt"
	"strings"

	. "github.com/onsi/gomega"
	"github.com/prometheus/client_golang/prometheus"
)

// NonZero are the series of a metric that are not 0, each as the values of its labels, in
// the order of their names, and its value: "Install succeeded 2". The value of a histogram
// is how often it has observed something.
func NonZero(g Gomega, gatherer prometheus.Gatherer, name string) []string {
	families, err := gatherer.Gather()
	g.Expect(err).NotTo(HaveOccurred())
	var all []string
	for _, family := range families {
		if family.GetName() != name {
			continue
		}
		for _, metric := range family.GetMetric() {
			value := metric.GetCounter().GetValue() + metric.GetGauge().GetValue() + float64(metric.GetHistogram().GetSampleCount())
			if value == 0 {
				continue
			}
			var words []string
			for _, label := range metric.GetLabel() {
				words = append(words, label.GetValue())
			}
			all = append(all, strings.Join(append(words, fmt.Sprint(value)), " "))
		}
	}

	return all
}
