package controllers

import (
	"context"
	"errors"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	bootstrapv1 "github.com/capi-talos/capi-talos/bootstrap/api/v1beta1"
)

// refuseSecret lets the API server not take a Secret of that name; empty takes all.
func (w *world) refuseSecret(name *string, answer error) {
	w.client = interceptor.NewClient(w.client, interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, object client.Object, opts ...client.CreateOption) error {
			if object.GetName() == *name {
				return answer
			}
			return c.Create(ctx, object, opts...)
		},
	})
}

// TestASecretThatTheAPIServerDoesNotTakeIsTold: in its words, in the condition that the
// others point at, and with one event.
func TestASecretThatTheAPIServerDoesNotTakeIsTold(t *testing.T) {
	quota := func(name string) error {
		return apierrors.NewForbidden(schema.GroupResource{Resource: "secrets"}, name, errors.New("exceeded quota: secrets"))
	}
	for name, tc := range map[string]struct {
		secret, condition, words string
		answer                   error
		ready                    metav1.ConditionStatus
	}{
		"the bundle": {
			secret: "one-talos", condition: bootstrapv1.TalosConfigCertificatesAvailableCondition, answer: quota("one-talos"),
			words: "exceeded quota: secrets", ready: metav1.ConditionFalse,
		},
		"the CA": {
			secret: "one-ca", condition: bootstrapv1.TalosConfigCertificatesAvailableCondition, answer: quota("one-ca"),
			words: "exceeded quota: secrets", ready: metav1.ConditionFalse,
		},
		"the machine configuration": {
			secret: cpName, condition: bootstrapv1.TalosConfigDataSecretAvailableCondition, answer: quota(cpName),
			words: "exceeded quota: secrets", ready: metav1.ConditionFalse,
		},
		"the client configuration": {
			secret: "one-talosconfig", condition: bootstrapv1.TalosConfigClientConfigAvailableCondition, answer: quota("one-talosconfig"),
			words: "exceeded quota: secrets", ready: metav1.ConditionTrue,
		},
		"a webhook does not answer": {
			secret: "one-talos", condition: bootstrapv1.TalosConfigCertificatesAvailableCondition, ready: metav1.ConditionFalse,
			answer: apierrors.NewInternalError(errors.New(`failed calling webhook "policy.example.com"`)), words: "policy.example.com",
		},
	} {
		t.Run(name, func(t *testing.T) {
			machine, config := newMachine(cpName, true)
			cluster := newCluster()
			cluster.Status.Initialization.InfrastructureProvisioned = nil
			w := newWorld(t, cluster, machine, config)
			w.settle(cpName)
			cluster.Status.Initialization.InfrastructureProvisioned = ptr.To(true)
			w.Expect(w.client.Status().Update(t.Context(), cluster)).To(Succeed())

			refused := tc.secret
			w.refuseSecret(&refused, tc.answer)
			_, err := w.reconcile(cpName)
			w.Expect(err).To(HaveOccurred())
			w.expect(cpName, tc.condition, metav1.ConditionFalse, bootstrapv1.CertificatesErrorReason, tc.words)
			w.expect(cpName, tc.condition, metav1.ConditionFalse, bootstrapv1.CertificatesErrorReason, "it is tried again")
			w.expect(cpName, bootstrapv1.TalosConfigReadyCondition, tc.ready, "", "")
			w.Expect(w.warnings()).To(ConsistOf(And(HavePrefix("Warning NeedsAttention "+tc.condition+": "), ContainSubstring(tc.words))))
			w.get(config, cpName)
			before := config.ResourceVersion

			_, err = w.reconcile(cpName)
			w.Expect(err).To(HaveOccurred())
			w.get(config, cpName)
			w.Expect(config.ResourceVersion).To(Equal(before), "what does not change is not written")
			w.Expect(w.warnings()).To(BeEmpty())

			refused = ""
			w.settle(cpName)
			w.expect(cpName, tc.condition, metav1.ConditionTrue, "", "")
			w.expect(cpName, bootstrapv1.TalosConfigReadyCondition, metav1.ConditionTrue, "", "")
		})
	}
}

// TestThatSomebodyWasFasterIsNotTold: it passes with the next reconcile.
func TestThatSomebodyWasFasterIsNotTold(t *testing.T) {
	for name, answer := range map[string]error{
		"in making it":   apierrors.NewAlreadyExists(schema.GroupResource{Resource: "secrets"}, "one-ca"),
		"in changing it": apierrors.NewConflict(schema.GroupResource{Resource: "secrets"}, "one-ca", errors.New("it was changed")),
	} {
		t.Run(name, func(t *testing.T) {
			machine, config := newMachine(cpName, true)
			w := newWorld(t, newCluster(), machine, config)
			refused := "one-ca"
			w.refuseSecret(&refused, answer)
			_, _ = w.reconcile(cpName)
			w.get(config, cpName)
			for _, found := range config.GetConditions() {
				w.Expect(found.Reason).NotTo(Equal(bootstrapv1.CertificatesErrorReason), found.Type)
			}
			w.Expect(w.warnings()).To(BeEmpty())
		})
	}
}

// failSecret has reading and making a Secret of that name fail, without the API server having
// refused anything; empty lets all through.
func (w *world) failSecret(name *string) {
	failure := errors.New("read tcp 10.0.0.9:41234->10.0.0.1:6443: i/o timeout")
	w.refuseSecret(name, failure)
	w.client = interceptor.NewClient(w.client, interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, object client.Object, opts ...client.GetOption) error {
			if key.Name == *name && isSecret(object) {
				return failure
			}
			return c.Get(ctx, key, object, opts...)
		},
	})
}

// isSecret reports whether an object is a Secret: that of a TalosConfig has its name.
func isSecret(object client.Object) bool {
	switch object.(type) {
	case *corev1.Secret, *metav1.PartialObjectMetadata:
		return true
	default:
		return false
	}
}

// TestASecretOfWhichNothingIsKnownIsNotCalledMissing: a call that fails says nothing about
// it. Nobody is warned, and what was rendered stays ready.
func TestASecretOfWhichNothingIsKnownIsNotCalledMissing(t *testing.T) {
	const certificates, dataSecret, clientConfig = bootstrapv1.TalosConfigCertificatesAvailableCondition,
		bootstrapv1.TalosConfigDataSecretAvailableCondition, bootstrapv1.TalosConfigClientConfigAvailableCondition
	for name, tc := range map[string]struct {
		secret, condition string
		ready             metav1.ConditionStatus
	}{
		"the bundle":                {"one-talos", certificates, metav1.ConditionTrue},
		"the CA":                    {"one-ca", certificates, metav1.ConditionTrue},
		"the machine configuration": {cpName, dataSecret, metav1.ConditionUnknown},
		"the client configuration":  {"one-talosconfig", clientConfig, metav1.ConditionTrue},
	} {
		t.Run(name, func(t *testing.T) {
			machine, config := newMachine(cpName, true)
			w := newWorld(t, newCluster(), machine, config)
			failing := ""
			w.failSecret(&failing)
			w.settle(cpName)

			failing = tc.secret
			for range 2 {
				_, err := w.reconcile(cpName)
				w.Expect(err).To(HaveOccurred())
				w.expect(cpName, tc.condition, metav1.ConditionUnknown, bootstrapv1.CertificatesErrorReason, "it is tried again, see the log of the manager")
				w.expect(cpName, bootstrapv1.TalosConfigReadyCondition, tc.ready, "", "")
			}
			w.Expect(w.warnings()).To(BeEmpty())

			failing = ""
			w.settle(cpName)
			w.expect(cpName, tc.condition, metav1.ConditionTrue, "", "")
		})
	}
}

// TestARefusalAfterAFailureIsAWarning: it is known then that somebody is needed.
func TestARefusalAfterAFailureIsAWarning(t *testing.T) {
	machine, config := newMachine(cpName, true)
	w := newWorld(t, newCluster(), machine, config)
	failing, refused := "one-talos", ""
	w.failSecret(&failing)
	w.refuseSecret(&refused, apierrors.NewInternalError(errors.New("no webhook")))
	_, err := w.reconcile(cpName)
	w.Expect(err).To(HaveOccurred())
	w.Expect(w.warnings()).To(BeEmpty())

	failing, refused = "", "one-talos"
	for range 2 {
		_, err = w.reconcile(cpName)
		w.Expect(err).To(HaveOccurred())
	}
	w.expect(cpName, bootstrapv1.TalosConfigCertificatesAvailableCondition, metav1.ConditionFalse, bootstrapv1.CertificatesErrorReason, "no webhook")
	w.Expect(w.warnings()).To(ConsistOf(HavePrefix("Warning NeedsAttention " + bootstrapv1.TalosConfigCertificatesAvailableCondition + ": ")))
}
