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
