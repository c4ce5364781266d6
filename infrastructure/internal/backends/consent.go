package backends

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
)

// AllowsPods reports whether an administrator lets machines be Pods in a namespace. The manager
// may make Pods and Services everywhere, and most API servers forbid none: without a word of
// theirs whoever may make TalosMachines would have the nodes, and whoever may make TalosClusters
// any Service.
func AllowsPods(ctx context.Context, reader client.Reader, name string) (bool, error) {
	namespace := &corev1.Namespace{}
	if err := reader.Get(ctx, client.ObjectKey{Name: name}, namespace); err != nil {
		return false, fmt.Errorf("reading Namespace %s: %w", name, err)
	}

	return namespace.Labels[infrav1.PodSecurityLabel] == infrav1.PodSecurityPrivileged, nil
}

// HowToAllowPods is what an administrator does to let machines be Pods in a namespace.
const HowToAllowPods = "an administrator allows machines in Pods there with the label " + infrav1.PodSecurityLabel + ": " + infrav1.PodSecurityPrivileged + "; it is looked at again"
