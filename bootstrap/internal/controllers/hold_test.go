package controllers

import (
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	bootstrapv1 "github.com/capi-talos/capi-talos/bootstrap/api/v1beta1"
)

func TestBootstrapDataIsHeldBackUntilTheOwnerLetsGo(t *testing.T) {
	const why = "Waiting for Machine one-cp-first to become a voting member of etcd"
	for name, tc := range map[string]struct{ value, message string }{
		"with a reason":                 {why, why},
		"without one":                   {" ", "Held back by annotation bootstrap.cluster.x-k8s.io/hold-bootstrap-data"},
		"with more than a condition is": {strings.Repeat("ä", 40000), strings.Repeat("ä", 512)},
	} {
		t.Run(name, func(t *testing.T) {
			machine, config := newMachine(cpName, true)
			config.Annotations = map[string]string{bootstrapv1.HoldBootstrapDataAnnotation: tc.value}
			w := newWorld(t, newCluster(), machine, config)

			w.settle(cpName)
			w.expectNoSecret(cpName)
			for _, condition := range []string{bootstrapv1.TalosConfigReadyCondition, bootstrapv1.TalosConfigDataSecretAvailableCondition} {
				w.expect(cpName, condition, metav1.ConditionFalse, bootstrapv1.HeldByOwnerReason, tc.message)
			}
			w.expect(cpName, bootstrapv1.TalosConfigCertificatesAvailableCondition, metav1.ConditionTrue, "", "")
			w.get(config, cpName)
			w.Expect(config.Status.DataSecretName).To(BeEmpty())
			w.Expect(config.Status.Initialization.DataSecretCreated).To(BeNil())

			w.annotate(config, bootstrapv1.HoldBootstrapDataAnnotation, "")
			w.settle(cpName)
			w.Expect(w.secret(cpName).Data).To(HaveKey("value"))
			w.expect(cpName, bootstrapv1.TalosConfigReadyCondition, metav1.ConditionTrue, "", "")
		})
	}
}

func TestAHoldMeansNothingOnceTheBootstrapDataIsThere(t *testing.T) {
	machine, config := newMachine(cpName, true)
	w := newWorld(t, newCluster(), machine, config, usersBundle())
	w.settle(cpName)
	before := w.secret(cpName)
	w.get(config, cpName)

	w.annotate(config, bootstrapv1.HoldBootstrapDataAnnotation, "too late")
	w.settle(cpName)
	w.expect(cpName, bootstrapv1.TalosConfigReadyCondition, metav1.ConditionTrue, "", "")
	w.Expect(w.secret(cpName)).To(Equal(before))
}

// A configuration that cannot be made is known before its turn comes.
func TestAHoldDoesNotHideABrokenPatch(t *testing.T) {
	machine, config := newMachine(cpName, true)
	config.Annotations = map[string]string{bootstrapv1.HoldBootstrapDataAnnotation: "not yet"}
	config.Spec.StrategicPatches = []string{"machine: {colour: red}"}
	w := newWorld(t, newCluster(), machine, config, usersBundle())
	w.settle(cpName)
	w.expect(cpName, bootstrapv1.TalosConfigReadyCondition, metav1.ConditionFalse, bootstrapv1.PatchFailedReason, "strategicPatches[0]")
}

// annotate sets an annotation as a person does; an empty value removes it.
func (w *world) annotate(config *bootstrapv1.TalosConfig, key, value string) {
	w.t.Helper()
	before := config.DeepCopy()
	if config.Annotations == nil {
		config.Annotations = map[string]string{}
	}
	config.Annotations[key] = value
	if value == "" {
		delete(config.Annotations, key)
	}
	w.Expect(w.client.Patch(w.t.Context(), config, client.MergeFrom(before))).To(Succeed())
}
