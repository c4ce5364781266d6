package reconciliation

import (
	"reflect"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/objects"
)

// IgnoreWords passes all events but updates after which an object tells of a refusal in other
// words alone (objects.Says). These may differ at each try: they have the ID of a request, or
// come from that of two webhooks which was faster. A controller that tells them would be woken
// by that, and try at once what it is to try after a while; so would one whose object Cluster
// API copies them from.
func IgnoreWords() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		if e.ObjectOld.GetResourceVersion() == e.ObjectNew.GetResourceVersion() || !hasWords(e.ObjectNew) {
			return true
		}
		before, err := withoutWords(e.ObjectOld)
		if err != nil {
			return true
		}
		after, err := withoutWords(e.ObjectNew)

		return err != nil || !reflect.DeepEqual(before, after)
	}}
}

// hasWords reports whether a condition of an object has words of the API server.
func hasWords(object client.Object) bool {
	teller, ok := object.(conditions.Getter)

	return ok && slices.ContainsFunc(teller.GetConditions(), func(told metav1.Condition) bool { return strings.Contains(told.Message, objects.Says) })
}

// withoutWords is the content of an object without the texts that have words of the API server,
// and without what changes with each of them.
func withoutWords(object client.Object) (map[string]any, error) {
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
	if err != nil {
		return nil, err
	}
	if metadata, ok := content["metadata"].(map[string]any); ok {
		delete(metadata, "resourceVersion")
		delete(metadata, "managedFields")
	}
	dropWords(content)

	return content, nil
}

// dropWords takes the words of the API server from all texts below a value. The times of
// conditions go, too: those of former versions change with their messages.
func dropWords(value any) {
	switch value := value.(type) {
	case map[string]any:
		delete(value, "lastTransitionTime")
		for key, below := range value {
			if text, ok := below.(string); ok {
				value[key] = objects.WithoutWords(text)
				continue
			}
			dropWords(below)
		}
	case []any:
		for _, below := range value {
			dropWords(below)
		}
	}
}
