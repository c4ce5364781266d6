// Package drift compares the objects of a release with those of a workload cluster, and
// changes them back. It asks the API server what applying them would change, and so knows
// defaults, the keys of lists, and the fields of others, which are no drift.
package drift

import (
	"context"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonv1 "github.com/capi-talos/capi-talos/addons/api/v1alpha1"
	"github.com/capi-talos/capi-talos/addons/internal/release"
)

const (
	// missing is how an object is told that is not there.
	missing = "Missing"
	// maxChange is how long the text of a change may be, and maxObjects how many objects
	// are told.
	maxChange, maxObjects = 1024, 32
)

// Objects looks after the objects of releases in one workload cluster. It implements
// what release.Objects needs of it.
type Objects struct {
	// Client reads and writes live. It is required.
	Client client.Client
	// Ignore are the fields that others may change.
	Ignore []addonv1.DriftIgnoreRule
}

// Drift is that of release.Objects.
func (o Objects) Drift(ctx context.Context, content release.Content) ([]addonv1.DriftedObject, error) {
	drifted, err := o.drift(ctx, content)

	return drifted, classify(err)
}

// Correct is that of release.Objects.
func (o Objects) Correct(ctx context.Context, content release.Content, drifted []addonv1.DriftedObject) error {
	return classify(o.correct(ctx, content, drifted))
}

// classify tells errors apart: whether the API server does not answer, or that is its answer.
func classify(err error) error {
	if release.IsUnanswered(err) {
		return fmt.Errorf("%w: %w", release.ErrUnreachable, err)
	}

	return err
}

func (o Objects) drift(ctx context.Context, content release.Content) ([]addonv1.DriftedObject, error) {
	var drifted []addonv1.DriftedObject
	for _, object := range content.Objects {
		wanted, err := o.wanted(object, content.Target)
		if err != nil {
			return nil, err
		}
		if wanted == nil {
			continue
		}
		change, err := o.change(ctx, wanted)
		if err != nil {
			return nil, err
		}
		if change != "" && len(drifted) < maxObjects {
			drifted = append(drifted, addonv1.DriftedObject{Object: release.NameOf(wanted), Change: change})
		}
	}

	return drifted, nil
}

func (o Objects) correct(ctx context.Context, content release.Content, drifted []addonv1.DriftedObject) error {
	for _, object := range content.Objects {
		wanted, err := o.wanted(object, content.Target)
		if err != nil {
			return err
		}
		if wanted == nil || !slices.ContainsFunc(drifted, func(one addonv1.DriftedObject) bool { return one.Object == release.NameOf(wanted) }) {
			continue
		}
		if err := retry.RetryOnConflict(retry.DefaultBackoff, func() error { return o.changeBack(ctx, wanted) }); err != nil {
			return fmt.Errorf("changing %s back: %w", release.NameOf(wanted), err)
		}
	}

	return nil
}

// wanted is an object as it is to be in the cluster; nil when others may change all of it. Helm's
// marks are part of it.
func (o Objects) wanted(object *unstructured.Unstructured, target release.Target) (*unstructured.Unstructured, error) {
	wanted := object.DeepCopy()
	namespaced, err := o.Client.IsObjectNamespaced(wanted)
	if err != nil {
		return nil, fmt.Errorf("looking up the kind of %s: %w", release.NameOf(object), err)
	}
	switch {
	case !namespaced:
		wanted.SetNamespace("")
	case wanted.GetNamespace() == "":
		wanted.SetNamespace(target.Namespace)
	}
	wanted.SetLabels(with(wanted.GetLabels(), release.ManagedByLabel, release.ManagedByHelm))
	annotations := with(wanted.GetAnnotations(), release.NameAnnotation, target.Name)
	wanted.SetAnnotations(with(annotations, release.NamespaceAnnotation, target.Namespace))
	for _, field := range []string{"creationTimestamp", "managedFields", "resourceVersion", "uid"} {
		unstructured.RemoveNestedField(wanted.Object, "metadata", field)
	}
	unstructured.RemoveNestedField(wanted.Object, "status")
	if slices.ContainsFunc(o.ignored(wanted), func(keys []string) bool { return keys == nil }) {
		return nil, nil //nolint:nilnil // Nothing of it is wanted.
	}

	return wanted, nil
}

// ignored are the pointers to the fields of an object that others may change.
func (o Objects) ignored(object *unstructured.Unstructured) [][]string {
	var pointers [][]string
	for _, rule := range o.Ignore {
		if (rule.Kind != "" && rule.Kind != object.GetKind()) || (rule.Name != "" && rule.Name != object.GetName()) {
			continue
		}
		for _, path := range rule.Paths {
			pointers = append(pointers, pointer(path))
		}
	}
	sortForKeep(pointers)

	return pointers
}

// withIgnored is what is wanted of an object that is there: of the fields that others may change, what
// they have there. To leave such a field out would not do: one that an earlier correction has
// written belongs to the manager alone, and the API server deletes or resets what its owner no
// longer states; and most lists are taken as a whole.
func (o Objects) withIgnored(wanted, live *unstructured.Unstructured) *unstructured.Unstructured {
	wanted, has := wanted.DeepCopy(), stripped(live)
	for _, keys := range o.ignored(wanted) {
		keep(wanted.Object, has, keys)
	}

	return wanted
}

func with(values map[string]string, key, value string) map[string]string {
	if values == nil {
		values = map[string]string{}
	}
	values[key] = value

	return values
}

// change says how an object of the cluster differs; empty when it does not.
func (o Objects) change(ctx context.Context, wanted *unstructured.Unstructured) (string, error) {
	found, err := o.live(ctx, wanted)
	if err != nil {
		return "", err
	}
	if found == nil {
		return missing, nil
	}
	applied := o.withIgnored(wanted, found)
	err = o.apply(ctx, applied, client.DryRunAll)
	if apierrors.IsInvalid(err) {
		// A field that cannot be changed was: somebody has made the object anew.
		return "it has a field that cannot be changed back", nil
	}
	if err != nil {
		return "", fmt.Errorf("comparing %s: %w", release.NameOf(wanted), err)
	}
	paths := differences("", stripped(found), stripped(applied))
	slices.Sort(paths)
	text := strings.Join(paths, ", ")
	if len(text) > maxChange {
		text = text[:maxChange-len("...")] + "..."
	}

	return text, nil
}

// changeBack changes an object back. It returns a conflict when somebody has changed it meanwhile,
// where there are fields that others may change.
func (o Objects) changeBack(ctx context.Context, wanted *unstructured.Unstructured) error {
	if len(o.ignored(wanted)) == 0 {
		return o.apply(ctx, wanted)
	}
	found, err := o.live(ctx, wanted)
	if err != nil {
		return err
	}
	applied := wanted.DeepCopy()
	if found != nil {
		applied = o.withIgnored(wanted, found)
		applied.SetResourceVersion(found.GetResourceVersion())
	}

	return o.apply(ctx, applied)
}

// live is an object as it is in the cluster; nil when it is not there.
func (o Objects) live(ctx context.Context, wanted *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	found := &unstructured.Unstructured{}
	found.SetGroupVersionKind(wanted.GroupVersionKind())
	err := o.Client.Get(ctx, client.ObjectKeyFromObject(wanted), found)
	if apierrors.IsNotFound(err) {
		return nil, nil //nolint:nilnil // There is none.
	}
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", release.NameOf(wanted), err)
	}

	return found, nil
}

func (o Objects) apply(ctx context.Context, object *unstructured.Unstructured, options ...client.ApplyOption) error {
	return o.Client.Apply(ctx, client.ApplyConfigurationFromUnstructured(object), append(options, client.ForceOwnership, release.FieldOwner)...)
}

// stripped is an object without what the API server keeps.
func stripped(object *unstructured.Unstructured) map[string]any {
	object = object.DeepCopy()
	for _, field := range []string{"managedFields", "resourceVersion", "generation", "uid", "creationTimestamp"} {
		unstructured.RemoveNestedField(object.Object, "metadata", field)
	}
	unstructured.RemoveNestedField(object.Object, "status")

	return object.Object
}
