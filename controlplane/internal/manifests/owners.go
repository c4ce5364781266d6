package manifests

import (
	"context"
	"fmt"
	"slices"

	"github.com/siderolabs/talos/pkg/machinery/constants"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/util/csaupgrade"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
	"sigs.k8s.io/structured-merge-diff/v6/value"
)

// talosManagers are the field managers by which Talos and its tool have made and
// changed objects.
func talosManagers() sets.Set[string] {
	return sets.New(constants.KubernetesFieldManagerName, "talosctl")
}

// ownAsApplied gives the fields of an object that Talos has created or updated to
// those that it has applied, which a release before 1.13 does not: else none of them
// would ever go.
func ownAsApplied(ctx context.Context, workload client.Client, object *unstructured.Unstructured) error {
	patch, err := csaupgrade.UpgradeManagedFieldsPatch(object, talosManagers(), constants.KubernetesFieldManagerName)
	if err != nil {
		return fmt.Errorf("reading its field managers: %w", err)
	}
	if patch == nil {
		return nil
	}

	return workload.Patch(ctx, object, client.RawPatch(types.JSONPatchType, patch))
}

// leaveToOthers takes from a manifest what others than Talos have set in the object
// that is there, such as a number of replicas or a Corefile, and names those fields
// that differ.
func leaveToOthers(manifest, present *unstructured.Unstructured) ([]string, error) {
	others := fieldpath.NewSet()
	for _, entry := range present.GetManagedFields() {
		if talosManagers().Has(entry.Manager) || entry.FieldsV1 == nil {
			continue
		}
		owned := fieldpath.NewSet()
		if err := owned.FromJSON(entry.FieldsV1.GetRawReader()); err != nil {
			return nil, fmt.Errorf("reading the fields of %s: %w", entry.Manager, err)
		}
		others = others.Union(owned)
	}

	var different []string
	for path := range others.Leaves().All() {
		above, last := path[:len(path)-1], path[len(path)-1]
		fields := fieldsAt(manifest.Object, above)
		if last.FieldName == nil || isKey(above, *last.FieldName) {
			continue
		}
		wanted, stated := fields[*last.FieldName]
		if !stated {
			continue
		}
		if !equality.Semantic.DeepEqual(wanted, fieldsAt(present.Object, above)[*last.FieldName]) {
			different = append(different, path.String())
		}
		delete(fields, *last.FieldName)
	}

	return different, nil
}

// fieldsAt is the object at a path; nil when there is none.
func fieldsAt(from any, path fieldpath.Path) map[string]any {
	for _, element := range path {
		switch {
		case element.FieldName != nil:
			fields, _ := from.(map[string]any)
			from = fields[*element.FieldName]
		case element.Key != nil:
			items, _ := from.([]any)
			i := slices.IndexFunc(items, func(item any) bool { return hasKey(item, *element.Key) })
			if i < 0 {
				return nil
			}
			from = items[i]
		default:
			return nil
		}
	}
	fields, _ := from.(map[string]any)

	return fields
}

// hasKey reports whether an item of a list has the values that tell it from the others.
func hasKey(item any, key value.FieldList) bool {
	fields, _ := item.(map[string]any)

	return !slices.ContainsFunc(key, func(field value.Field) bool {
		return !value.Equals(value.NewValueInterface(fields[field.Name]), field.Value)
	})
}

// isKey reports whether a field of the item at a path tells it from the others.
func isKey(path fieldpath.Path, field string) bool {
	if len(path) == 0 || path[len(path)-1].Key == nil {
		return false
	}

	return slices.ContainsFunc(*path[len(path)-1].Key, func(of value.Field) bool { return of.Name == field })
}
