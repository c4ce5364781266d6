// Package collectors shows metrics in the registry of a manager.
package collectors

import (
	"errors"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

// Register registers a collector, in place of the one that a former manager of the same
// process has left. what names its metrics in the error.
func Register(registry prometheus.Registerer, collector prometheus.Collector, what string) error {
	err := registry.Register(collector)
	if former := (prometheus.AlreadyRegisteredError{}); errors.As(err, &former) {
		registry.Unregister(former.ExistingCollector)
		err = registry.Register(collector)
	}
	if err != nil {
		return fmt.Errorf("registering the metrics of %s: %w", what, err)
	}

	return nil
}

// Several are collectors that are registered as one.
type Several []prometheus.Collector

var _ prometheus.Collector = Several{}

// Describe implements prometheus.Collector.
func (s Several) Describe(into chan<- *prometheus.Desc) {
	for _, part := range s {
		part.Describe(into)
	}
}

// Collect implements prometheus.Collector.
func (s Several) Collect(into chan<- prometheus.Metric) {
	for _, part := range s {
		part.Collect(into)
	}
}

// Jobs returns a gauge of jobs, with the label state: "running" for those that run, and
// "waiting" for what waits for one. jobs is asked whenever the metrics are read.
func Jobs(name, help string, jobs func() (running, waiting int)) Several {
	gauge := func(state string, read func() int) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: name, Help: help, ConstLabels: prometheus.Labels{"state": state},
		}, func() float64 { return float64(read()) })
	}

	return Several{
		gauge("running", func() int { running, _ := jobs(); return running }),
		gauge("waiting", func() int { _, waiting := jobs(); return waiting }),
	}
}
