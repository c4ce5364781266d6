package release

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonv1 "github.com/capi-talos/capi-talos/addons/api/v1alpha1"
)

const (
	// maxPlanned is how many objects of a kind of change a plan names.
	maxPlanned = 256
	// maxObjectName is how long the name of an object may be in a status: kind, namespace
	// and name of one that an API server takes are shorter.
	maxObjectName = 512
)

// Plan says what Run would do next, and which objects that would create, change or delete.
// Nothing is written but what Helm asks the API server to try.
func (r Runner) Plan(ctx context.Context, task Task) (addonv1.ReleasePlan, error) {
	history, err := r.Helm.History(ctx, task.Request.Target)
	if err != nil {
		return addonv1.ReleasePlan{}, err
	}
	task.History, task.Failures, task.Now = history, 0, r.Clock.Now()
	decision := Decide(task.Facts)
	plan := addonv1.ReleasePlan{Action: decision.Action, Digest: task.Digest, Message: decision.Message}
	if decision.Action != addonv1.ActionInstall && decision.Action != addonv1.ActionUpgrade {
		return plan, nil
	}
	request, err := r.prepare(ctx, task, decision.Action)
	if err != nil {
		return addonv1.ReleasePlan{}, err
	}
	request.DryRun = true
	dryRun := r.Helm.Install
	if decision.Action == addonv1.ActionUpgrade {
		dryRun = r.Helm.Upgrade
	}
	wanted, err := dryRun(ctx, request)
	if refused := (*RefusedError)(nil); errors.As(err, &refused) {
		plan.Message = refused.Message
		return plan, nil
	}
	if err != nil {
		return addonv1.ReleasePlan{}, err
	}
	found, err := r.Helm.Get(ctx, task.Request.Target)
	if err != nil && !errors.Is(err, ErrNotFound) {
		return addonv1.ReleasePlan{}, err
	}
	plan.Create, plan.Change, plan.Delete = changes(found.Objects, wanted.Objects)

	return plan, nil
}

// PlanRemoval says whether a release would be uninstalled, and which objects that would
// delete.
func (r Runner) PlanRemoval(ctx context.Context, removal Removal) (addonv1.ReleasePlan, error) {
	plan := addonv1.ReleasePlan{Digest: removal.Digest}
	found, err := r.Helm.Get(ctx, removal.Target)
	if errors.Is(err, ErrNotFound) || (err == nil && found.Owner != removal.Owner) {
		return plan, nil
	}
	if err != nil {
		return addonv1.ReleasePlan{}, err
	}
	plan.Action = addonv1.ActionUninstall
	_, _, plan.Delete = changes(found.Objects, nil)

	return plan, nil
}

// changes are the names of the objects that are in one list alone, or differ. They have no
// values.
func changes(before, after []*unstructured.Unstructured) (create, change, remove []string) {
	known := map[string]*unstructured.Unstructured{}
	for _, object := range before {
		known[NameOf(object)] = object
	}
	for _, object := range after {
		name := NameOf(object)
		former, there := known[name]
		switch {
		case !there:
			create = append(create, name)
		case !reflect.DeepEqual(former.Object, object.Object):
			change = append(change, name)
		}
		delete(known, name)
	}
	for name := range known {
		remove = append(remove, name)
	}
	for _, names := range []*[]string{&create, &change, &remove} {
		slices.Sort(*names)
		*names = (*names)[:min(len(*names), maxPlanned)]
	}

	return create, change, remove
}

// NameOf names an object for people: <kind>/<namespace>/<name>.
func NameOf(object client.Object) string {
	name := object.GetObjectKind().GroupVersionKind().Kind
	if namespace := object.GetNamespace(); namespace != "" {
		name += "/" + namespace
	}

	name += "/" + object.GetName()

	return strings.ToValidUTF8(name[:min(len(name), maxObjectName)], "")
}
