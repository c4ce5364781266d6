package v1alpha1

import "strings"

// GoneMachines are the provider IDs of the control plane machines in Pods of which
// nothing is left, as the annotations of a TalosCluster record them: the latest
// first.
func GoneMachines(annotations map[string]string) []string {
	value := annotations[GoneMachinesAnnotation]
	if value == "" {
		return nil
	}

	return strings.Split(value, ",")
}
