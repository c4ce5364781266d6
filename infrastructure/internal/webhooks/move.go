package webhooks

import (
	"context"
	"fmt"
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/infrastructure/internal/taloshost"
)

// moveVerb is the verb on taloshosts of whoever may bring hosts with the records of the
// manager, and take its finalizer from them: clusterctl move, and a restore. Whoever may do
// everything may do that too.
const moveVerb = "move"

// stripsHostInUse reports whether a change takes our finalizer from a host that has, or has
// had, a configuration of ours.
func stripsHostInUse(before, after *infrav1.TalosHost) bool {
	return taloshost.RecordsUse(before) && controllerutil.ContainsFinalizer(before, infrav1.TalosHostFinalizer) && !controllerutil.ContainsFinalizer(after, infrav1.TalosHostFinalizer)
}

// demandMove refuses what only whoever may move the host may do.
func (w *TalosHost) demandMove(ctx context.Context, host *infrav1.TalosHost, what string) error {
	req, err := admission.RequestFromContext(ctx)
	if err != nil {
		return apierrors.NewBadRequest(fmt.Sprintf("reading the admission request: %v", err))
	}
	user := req.UserInfo
	if user.Username == w.Manager {
		return nil
	}
	review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: user.Username, UID: user.UID, Groups: user.Groups, Extra: map[string]authorizationv1.ExtraValue{},
		ResourceAttributes: &authorizationv1.ResourceAttributes{
			Namespace: host.Namespace, Verb: moveVerb, Name: host.Name,
			Group: infrav1.GroupVersion.Group, Version: infrav1.GroupVersion.Version, Resource: "taloshosts",
		},
	}}
	for key, values := range user.Extra {
		review.Spec.Extra[key] = authorizationv1.ExtraValue(values)
	}
	if err := w.Reviews.Create(ctx, review); err != nil {
		return apierrors.NewInternalError(fmt.Errorf("asking whether the user may move TalosHost %s: %w", host.Name, err))
	}
	if review.Status.Allowed {
		return nil
	}

	return forbidden(host, fmt.Errorf("%s: that is for a move or a restore, and needs the verb %q on taloshosts, which cluster-admin has", what, moveVerb))
}

// refuseRecords refuses the records of the manager in a new host: with them its user would
// decide to whom keys are given, and which machine is wiped.
func (w *TalosHost) refuseRecords(ctx context.Context, host *infrav1.TalosHost) error {
	var names []string
	for _, record := range taloshost.RecordsOf(&host.Spec) {
		names = append(names, "spec."+string(record))
	}
	if len(names) == 0 {
		return nil
	}

	return w.demandMove(ctx, host, strings.Join(names, ", ")+" belongs to the infrastructure provider")
}

// isMoved reports whether clusterctl deletes a host because it has moved it: it says so in
// an annotation, and pauses the Cluster before.
func (w *TalosHost) isMoved(ctx context.Context, host *infrav1.TalosHost, consumer *infrav1.TalosMachine) (bool, error) {
	if !taloshost.IsMoved(host) {
		return false, nil
	}
	clusters := &clusterv1.ClusterList{}
	if err := w.Reader.List(ctx, clusters, client.InNamespace(host.Namespace)); err != nil {
		return false, fmt.Errorf("listing Clusters: %w", err)
	}
	for i := range clusters.Items {
		if cluster := &clusters.Items[i]; cluster.Name == consumer.Labels[clusterv1.ClusterNameLabel] {
			return ptr.Deref(cluster.Spec.Paused, false), nil
		}
	}

	return true, nil
}

func forbidden(host *infrav1.TalosHost, err error) error {
	return apierrors.NewForbidden(infrav1.GroupVersion.WithResource("taloshosts").GroupResource(), host.Name, err)
}
