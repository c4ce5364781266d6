package metrics

import (
	"context"
	"errors"
	"time"

	addonv1 "github.com/capi-talos/capi-talos/addons/api/v1alpha1"
	"github.com/capi-talos/capi-talos/addons/internal/source"
)

// Values of the label source.
const (
	sourceRepository = "Repository"
	sourceRegistry   = "Registry"
	sourceConfigMap  = "ConfigMap"
)

// resolutionFailed is the result of a resolution that has ended with no reason of
// condition ChartAvailable.
const resolutionFailed = "Failed"

// Charts are charts whose resolutions are counted.
type Charts struct {
	*source.Charts

	metrics *Metrics
}

// Charts counts the resolutions of charts.
func (m *Metrics) Charts(charts *source.Charts) *Charts { return &Charts{charts, m} }

// Resolve is that of source.Charts.
func (c *Charts) Resolve(ctx context.Context, from addonv1.AddonSource, access source.Access, known addonv1.ChartStatus) (addonv1.ChartStatus, error) {
	kind, began := sourceRepository, c.metrics.clock.Now()
	if from.Registry != (addonv1.RegistrySource{}) {
		kind = sourceRegistry
	}
	found, err := c.Charts.Resolve(ctx, from, access, known)
	c.metrics.resolved(kind, began, err)

	return found, err
}

// Take is that of source.Charts.
func (c *Charts) Take(archive []byte) (addonv1.ChartStatus, error) {
	began := c.metrics.clock.Now()
	found, err := c.Charts.Take(archive)
	c.metrics.resolved(sourceConfigMap, began, err)

	return found, err
}

func (m *Metrics) resolved(kind string, began time.Time, err error) {
	result, said := addonv1.ChartAvailableReason, (*source.Error)(nil)
	switch {
	case errors.As(err, &said):
		result = said.Reason
	case err != nil:
		result = resolutionFailed
	}
	m.resolutions.WithLabelValues(kind, result).Inc()
	m.resolutionDurations.WithLabelValues(kind, result).Observe(m.clock.Since(began).Seconds())
}
