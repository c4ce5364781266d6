// Package webhooks checks the kinds of the infrastructure provider at admission.
package webhooks

import (
	"context"
	"fmt"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/cluster-api/util/topology"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
)

// refuseChange refuses a change of a specification, but for the dry runs of the
// topology controller, and of an object that is being deleted.
func refuseChange(ctx context.Context, kind string, before, after any, object client.Object, path *field.Path, wayOut string) error {
	if !object.GetDeletionTimestamp().IsZero() || apiequality.Semantic.DeepEqual(before, after) {
		return nil
	}
	req, err := admission.RequestFromContext(ctx)
	if err != nil {
		return apierrors.NewBadRequest(fmt.Sprintf("reading the admission request: %v", err))
	}
	if topology.IsDryRunRequest(req, object) {
		return nil
	}

	return invalid(kind, object.GetName(), field.ErrorList{field.Forbidden(path, "is immutable; "+wayOut)})
}

func invalid(kind, name string, errs field.ErrorList) error {
	if len(errs) == 0 {
		return nil
	}

	return apierrors.NewInvalid(infrav1.GroupVersion.WithKind(kind).GroupKind(), name, errs)
}
