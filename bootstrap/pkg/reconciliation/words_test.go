package reconciliation_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"

	bootstrapv1 "github.com/capi-talos/capi-talos/bootstrap/api/v1beta1"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/condition"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/objects"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/reconciliation"
)

// refused is what a condition says of a webhook that denies a request, with an ID of it.
func refused(hint, webhook, request string) string {
	secrets := schema.GroupResource{Resource: "secrets"}

	return objects.Explain("It is tried again. "+hint, apierrors.NewForbidden(secrets, "s", fmt.Errorf("admission webhook %q denied the request: no (%s)", webhook, request)))
}

// told is an object that has been written before, and whose condition says something.
func told(version, message string, changes ...func(*bootstrapv1.TalosConfig)) *bootstrapv1.TalosConfig {
	object := &bootstrapv1.TalosConfig{ObjectMeta: metav1.ObjectMeta{
		Namespace: "fleet", Name: "a", ResourceVersion: version, ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "us", Operation: metav1.ManagedFieldsOperationType(version)}},
	}}
	condition.Set(object, clusterv1.ReadyCondition, condition.False("Refused", message))
	for _, change := range changes {
		change(object)
	}

	return object
}

// mirrored is a Machine with what Cluster API has copied from our object.
func mirrored(version, message string) *clusterv1.Machine {
	machine := &clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{ResourceVersion: version}}
	condition.Set(machine, clusterv1.BootstrapConfigReadyCondition, condition.False("Refused", message))
	machine.SetV1Beta1Conditions(clusterv1.Conditions{{ //nolint:staticcheck // SA1019: Cluster API writes them still.
		Type: clusterv1.BootstrapReadyV1Beta1Condition, Message: message, LastTransitionTime: metav1.NewTime(time.Now().Add(time.Duration(len(version)) * time.Hour)),
	}})

	return machine
}

// TestOtherWordsWakeNobody: a refusal that is told with an ID of the request, or by another
// webhook each time, would be tried again as soon as it is told, and not after a while.
func TestOtherWordsWakeNobody(t *testing.T) {
	first, next := refused("", "one.example.com", "request 6f1c"), refused("", "one.example.com", "request 77ab")
	unlike := objects.Explain("It is tried again. A webhook may not answer", apierrors.NewInternalError(errors.New("failed calling webhook")))
	reason := func(object *bootstrapv1.TalosConfig) {
		condition.Set(object, clusterv1.ReadyCondition, condition.False("Other", next))
	}
	for name, tc := range map[string]struct {
		before, after client.Object
		want          bool
	}{
		"an ID":                        {told("1", first), told("2", next), false},
		"another webhook":              {told("1", first), told("2", refused("", "other.example.com", "request 6f1c")), false},
		"another hint with them":       {told("1", first), told("2", unlike), true},
		"an ID in a copy":              {mirrored("1", "* BootstrapConfigReady: "+first), mirrored("22", "* BootstrapConfigReady: "+next), false},
		"a cache that is filled again": {told("1", first), told("1", first), true},
		"another reason":               {told("1", first), told("2", next, reason), true},
		"words of our own":             {told("1", "waits for a"), told("2", "waits for b"), true},
		"a refusal that is new":        {told("1", "waits for a"), told("2", first), true},
		"a refusal that is gone":       {told("1", first), told("2", "waits for a"), true},
		"a spec":                       {told("1", first), told("2", next, func(c *bootstrapv1.TalosConfig) { c.Spec.TalosVersion = "v1.13" }), true},
		"an annotation":                {told("1", first), told("2", first, func(c *bootstrapv1.TalosConfig) { c.Annotations = map[string]string{"a": "b"} }), true},
		"a deletion":                   {told("1", first), told("2", first, func(c *bootstrapv1.TalosConfig) { c.DeletionTimestamp = new(metav1.Now()) }), true},
		"what has no conditions":       {&corev1.Secret{ObjectMeta: metav1.ObjectMeta{ResourceVersion: "1"}}, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{ResourceVersion: "2"}}, true},
	} {
		t.Run(name, func(t *testing.T) {
			NewWithT(t).Expect(reconciliation.IgnoreWords().Update(event.UpdateEvent{ObjectOld: tc.before, ObjectNew: tc.after})).To(Equal(tc.want))
		})
	}
}

// TestEachControllerIgnoresWords: whatever may be refused is told by one of them.
func TestEachControllerIgnoresWords(t *testing.T) {
	g := NewWithT(t)
	files, err := filepath.Glob("../../../*/internal/controllers/*.go")
	g.Expect(err).NotTo(HaveOccurred())
	controllers := 0
	for _, file := range files {
		source, err := os.ReadFile(file)
		g.Expect(err).NotTo(HaveOccurred())
		if built := strings.Count(string(source), "NewControllerManagedBy("); built > 0 {
			controllers += built
			g.Expect(strings.Count(string(source), "WithEventFilter(reconciliation.IgnoreWords())")).To(Equal(built), file)
		}
	}
	g.Expect(controllers).To(BeNumerically(">", 10))
}
