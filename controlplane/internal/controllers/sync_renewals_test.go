package controllers

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
)

// TestARenewalThatFailsIsToldOnce, whatever the words of the API server are each time.
func TestARenewalThatFailsIsToldOnce(t *testing.T) {
	g := NewWithT(t)
	w := newWorld(t)
	w.settle(w.manager())
	tries, r := 0, w.manager()
	r.Client = interceptor.NewClient(w.client, interceptor.Funcs{
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch, opts ...client.PatchOption) error {
			if o.GetName() != "one-kubeconfig" {
				return c.Patch(ctx, o, p, opts...)
			}
			tries++
			return apierrors.NewInternalError(fmt.Errorf("request %d", tries))
		},
	})
	r.init(t.Context())
	w.askForRenewal()
	for range 3 {
		w.settle(r)
	}
	g.Expect(tries).To(BeNumerically(">", 1))
	g.Expect(w.recordedRenewals()).To(ConsistOf(HavePrefix("Warning RenewalFailed"), HavePrefix("Normal CredentialsRenewed")))
	g.Expect(conditions.GetMessage(w.controlPlane(), controlplanev1.CertificatesExpiringCondition)).To(ContainSubstring(fmt.Sprintf("request %d\n", tries)))
}

// refuseSecret has the API server not take changes of the Secret of that name, by a manager
// with this client; none, once the name is empty.
func (w *world) refuseSecret(name *string, answer error) client.Client {
	return interceptor.NewClient(w.client, interceptor.Funcs{
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch, opts ...client.PatchOption) error {
			if o.GetName() == *name {
				return answer
			}
			return c.Patch(ctx, o, p, opts...)
		},
	})
}

// A Secret that the API server does not let us write holds nothing else up. A wish for new
// certificates stays until each was made anew, and what was is not made once more.
func TestSecretThatCannotBeWrittenHoldsNothingUp(t *testing.T) {
	secretKind := corev1.SchemeGroupVersion.WithKind("Secret").GroupKind()
	for name, tc := range map[string]struct {
		answer error
		words  string
	}{
		"it is refused": {apierrors.NewInvalid(secretKind, "one-kubeconfig", nil), "is invalid"},
		"a webhook does not answer": {
			apierrors.NewInternalError(errors.New(`failed calling webhook "policy.example.com"`)), "policy.example.com",
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			w := newWorld(t)
			w.settle(w.manager())
			before := w.clientConfigs()
			refused := "one-kubeconfig"
			manager := func() *Reconciler {
				r := w.manager()
				r.Client = w.refuseSecret(&refused, tc.answer)
				r.init(t.Context())
				return r
			}
			r := manager()
			w.askForRenewal()
			w.scale(3)
			for range 3 {
				w.settle(r)
			}

			after := w.clientConfigs()
			g.Expect(after["value"].Data).To(Equal(before["value"].Data))
			g.Expect(serialOf(t, after["talosconfig"])).NotTo(Equal(serialOf(t, before["talosconfig"])))
			g.Expect(w.controlPlane().Annotations).To(HaveKeyWithValue(controlplanev1.RenewCredentialsAnnotation, "one-kubeconfig"), "what is left")
			g.Expect(w.members()).To(HaveLen(3))
			told := conditions.GetMessage(w.controlPlane(), controlplanev1.CertificatesExpiringCondition)
			g.Expect(told).To(And(HavePrefix("* Secret one-kubeconfig cannot be written"), ContainSubstring(tc.words), ContainSubstring("it is tried again")))
			g.Expect(w.recordedRenewals()).To(ConsistOf(
				And(HavePrefix("Warning RenewalFailed"), ContainSubstring("one-kubeconfig"), ContainSubstring(tc.words)),
				And(HavePrefix("Normal CredentialsRenewed"), ContainSubstring("one-talosconfig")),
			), "each is told once")

			// Another manager knows as much, and writes nothing.
			version := w.controlPlane().ResourceVersion
			w.settle(manager())
			g.Expect(w.controlPlane().ResourceVersion).To(Equal(version))
			g.Expect(w.secret("one-talosconfig").ResourceVersion).To(Equal(after["talosconfig"].ResourceVersion))
			g.Expect(w.recordedRenewals()).To(BeEmpty())

			refused = ""
			w.settle(r)
			g.Expect(serialOf(t, w.secret("one-kubeconfig"))).NotTo(Equal(serialOf(t, before["value"])))
			g.Expect(w.secret("one-talosconfig").ResourceVersion).To(Equal(after["talosconfig"].ResourceVersion))
			g.Expect(w.controlPlane().Annotations).NotTo(HaveKey(controlplanev1.RenewCredentialsAnnotation))
			g.Expect(conditions.GetMessage(w.controlPlane(), controlplanev1.CertificatesExpiringCondition)).NotTo(ContainSubstring("cannot be written"))
			g.Expect(w.recordedRenewals()).To(ConsistOf(And(HavePrefix("Normal CredentialsRenewed"), ContainSubstring("one-kubeconfig"))))
		})
	}
}

// A write of which nobody knows how it ended fails the reconcile, and the Secret that was
// renewed before it is not renewed again and again.
func TestWhatWasRenewedIsRememberedBesideAnError(t *testing.T) {
	g := NewWithT(t)
	w := newWorld(t)
	w.settle(w.manager())
	before := w.clientConfigs()
	refused := "one-talosconfig"
	r := w.manager()
	r.Client = w.refuseSecret(&refused, apierrors.NewTimeoutError("too slow", 1))
	r.init(t.Context())
	w.askForRenewal()
	g.Expect(w.reconcile(r)).NotTo(Succeed())
	renewed := w.secret("one-kubeconfig")
	g.Expect(serialOf(t, renewed)).NotTo(Equal(serialOf(t, before["value"])))
	g.Expect(w.reconcile(r)).NotTo(Succeed())
	g.Expect(w.secret("one-kubeconfig").ResourceVersion).To(Equal(renewed.ResourceVersion))
	g.Expect(w.controlPlane().Annotations).To(HaveKeyWithValue(controlplanev1.RenewCredentialsAnnotation, "one-talosconfig"))

	refused = ""
	w.settle(r)
	g.Expect(serialOf(t, w.secret("one-talosconfig"))).NotTo(Equal(serialOf(t, before["talosconfig"])))
	g.Expect(w.secret("one-kubeconfig").ResourceVersion).To(Equal(renewed.ResourceVersion))
	g.Expect(w.controlPlane().Annotations).NotTo(HaveKey(controlplanev1.RenewCredentialsAnnotation))
}

// recordedRenewals are the events about wishes for new certificates since it was asked last.
func (w *world) recordedRenewals() []string {
	return slices.DeleteFunc(w.recorded(), func(event string) bool {
		return !strings.Contains(event, "RenewalFailed") && !strings.Contains(event, "CredentialsRenewed")
	})
}

// The manager dies at each write of a renewal: in the end both certificates are
// new, the wish is used up, and nothing else has happened.
func TestRenewalSurvivesADeathAtEachWrite(t *testing.T) {
	const enough = 8
	for killAt := 1; killAt <= enough; killAt++ {
		t.Run(fmt.Sprint(killAt), func(t *testing.T) {
			g := NewWithT(t)
			w := newWorld(t)
			w.settle(w.manager())
			before := w.clientConfigs()
			w.askForRenewal()
			w.life.DieAt(killAt)
			for r := w.manager(); !w.life.IsOver(); {
				if err := w.reconcile(r); err == nil && !metav1.HasAnnotation(w.controlPlane().ObjectMeta, controlplanev1.RenewCredentialsAnnotation) {
					break // There are fewer writes.
				}
			}
			w.life.Restart()

			w.settle(w.manager())

			for key, secret := range w.clientConfigs() {
				g.Expect(serialOf(t, secret)).NotTo(Equal(serialOf(t, before[key])), key)
			}
			g.Expect(w.controlPlane().Annotations).NotTo(HaveKey(controlplanev1.RenewCredentialsAnnotation))
			g.Expect(w.bootstraps()).To(Equal(1))
		})
	}
}
