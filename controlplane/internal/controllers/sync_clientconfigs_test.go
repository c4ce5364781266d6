package controllers

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/clientcmd"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	bootstrapv1 "github.com/capi-talos/capi-talos/bootstrap/api/v1beta1"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/secrets"
	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
)

// clientConfigs are the Secrets of both client configurations, by the key of
// their content.
func (w *world) clientConfigs() map[string]*corev1.Secret {
	w.t.Helper()

	return map[string]*corev1.Secret{"value": w.secret("one-kubeconfig"), "talosconfig": w.secret("one-talosconfig")}
}

// askForRenewal does what a person does to get new certificates.
func (w *world) askForRenewal() {
	w.change(func(controlPlane *controlplanev1.TalosControlPlane) {
		metav1.SetMetaDataAnnotation(&controlPlane.ObjectMeta, controlplanev1.RenewCredentialsAnnotation, "leaked")
	})
}

// serialOf tells certificates of one client configuration apart.
func serialOf(t *testing.T, secret *corev1.Secret) string {
	t.Helper()
	g := NewWithT(t)
	var encoded []byte
	if content, found := secret.Data["value"]; found {
		config, err := clientcmd.Load(content)
		g.Expect(err).NotTo(HaveOccurred())
		for _, user := range config.AuthInfos {
			encoded = user.ClientCertificateData
		}
	} else {
		credentials, _, err := secrets.ParseTalosconfig(secret.Data["talosconfig"])
		g.Expect(err).NotTo(HaveOccurred())
		encoded = credentials.Cert
	}
	block, _ := pem.Decode(encoded)
	cert, err := x509.ParseCertificate(block.Bytes)
	g.Expect(err).NotTo(HaveOccurred())

	return cert.SerialNumber.String()
}

// addressOf is the address of a Machine.
func addressOf(machine *clusterv1.Machine) string {
	for _, address := range machine.Status.Addresses {
		if address.Type == clusterv1.MachineInternalIP {
			return address.Address
		}
	}

	return ""
}

func TestTalosconfigSecretIsMovedWithTheCluster(t *testing.T) {
	g := NewWithT(t)
	w := newWorld(t)
	w.settle(w.manager())

	secret := w.secret("one-talosconfig")
	g.Expect(secret.Type).To(Equal(clusterv1.ClusterSecretType))
	g.Expect(secret.Labels).To(HaveKeyWithValue(clusterv1.ClusterNameLabel, testCluster))
	g.Expect(secret.Annotations).To(HaveKey(bootstrapv1.GeneratedAnnotation))
	g.Expect(secret.OwnerReferences).To(ConsistOf(And(HaveField("Kind", "Cluster"), HaveField("Controller", BeNil()))))
	credentials, endpoints, err := secrets.ParseTalosconfig(secret.Data["talosconfig"])
	g.Expect(err).NotTo(HaveOccurred())
	bundle, err := testBundle()
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(credentials.CA).To(Equal(bundle.TalosCA()))
	g.Expect(endpoints).To(Equal([]string{addressOf(w.machines()[0])}))
}

func TestBadInputTalosconfigOfAControlPlaneDeletedIsMadeAgain(t *testing.T) {
	g := NewWithT(t)
	w := newWorld(t)
	r := w.manager()
	w.settle(r)
	before := w.secret("one-talosconfig")
	g.Expect(w.client.Delete(t.Context(), before)).To(Succeed())

	w.settle(r)

	after := w.secret("one-talosconfig")
	former, formerEndpoints, err := secrets.ParseTalosconfig(before.Data["talosconfig"])
	g.Expect(err).NotTo(HaveOccurred())
	credentials, endpoints, err := secrets.ParseTalosconfig(after.Data["talosconfig"])
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(endpoints).To(Equal(formerEndpoints))
	g.Expect(credentials.CA).To(Equal(former.CA), "of the same CA")
	g.Expect(conditions.IsTrue(w.controlPlane(), controlplanev1.CertificatesAvailableCondition)).To(BeTrue())
}

func TestClientCertificatesAreRenewed(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*world)
		want   bool
	}{
		"not when nothing changes":        {func(*world) {}, false},
		"not before half of their life":   {func(w *world) { w.clock.SetTime(testTime.AddDate(0, 5, 0)) }, false},
		"after half of their life":        {func(w *world) { w.clock.SetTime(testTime.AddDate(0, 7, 0)) }, true},
		"after they have expired":         {func(w *world) { w.clock.SetTime(testTime.AddDate(2, 0, 0)) }, true},
		"when a person asks for it":       {(*world).askForRenewal, true},
		"not when the endpoint changes":   {func(w *world) { w.changeEndpoint("10.0.0.200") }, false},
		"not when the status is lost":     {(*world).loseStatus, false},
		"not when their owners are taken": {(*world).stripClientConfigs, false},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			w := newWorld(t)
			r := w.manager()
			w.settle(r)
			before := w.clientConfigs()
			tc.change(w)

			w.settle(r)
			after := w.clientConfigs()
			for key := range before {
				renewed := serialOf(t, after[key]) != serialOf(t, before[key])
				g.Expect(renewed).To(Equal(tc.want), key)
				g.Expect(after[key].OwnerReferences).To(Equal(before[key].OwnerReferences), key)
				g.Expect(after[key].Labels).To(Equal(before[key].Labels), key)
			}
			g.Expect(w.controlPlane().Annotations).NotTo(HaveKey(controlplanev1.RenewCredentialsAnnotation))

			// Then nothing is written any more.
			w.settle(w.manager())
			for key, secret := range w.clientConfigs() {
				g.Expect(secret.ResourceVersion).To(Equal(after[key].ResourceVersion), key)
			}
		})
	}
}

// stripClientConfigs takes the owners from both Secrets.
func (w *world) stripClientConfigs() {
	w.t.Helper()
	for _, secret := range w.clientConfigs() {
		secret.OwnerReferences = nil
		NewWithT(w.t).Expect(w.client.Update(w.t.Context(), secret)).To(Succeed())
	}
}

func TestSecretsOfUsersAreLeftAlone(t *testing.T) {
	for name, secretType := range map[string]corev1.SecretType{
		"of any type": corev1.SecretTypeOpaque, "of the type of Cluster API": clusterv1.ClusterSecretType,
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			w := newWorld(t)
			r := w.manager()
			w.settle(r)
			for key, secret := range w.clientConfigs() {
				g.Expect(w.client.Delete(t.Context(), secret)).To(Succeed())
				g.Expect(w.client.Create(t.Context(), &corev1.Secret{
					ObjectMeta: metav1.ObjectMeta{Namespace: testNamespace, Name: secret.Name, Labels: secret.Labels},
					Data:       map[string][]byte{key: secret.Data[key]}, Type: secretType,
				})).To(Succeed())
			}
			before := w.clientConfigs()
			w.changeEndpoint("10.0.0.200")
			w.askForRenewal()
			w.clock.SetTime(testTime.AddDate(0, 11, 20))

			w.settle(r)

			for key, secret := range w.clientConfigs() {
				g.Expect(secret.ResourceVersion).To(Equal(before[key].ResourceVersion), key)
			}
			g.Expect(w.controlPlane().Annotations).NotTo(HaveKey(controlplanev1.RenewCredentialsAnnotation))
			condition := conditions.Get(w.controlPlane(), controlplanev1.CertificatesExpiringCondition)
			g.Expect(condition.Status).To(Equal(metav1.ConditionTrue))
			g.Expect(condition.Message).To(And(
				ContainSubstring("one-kubeconfig expires soon; "+"replace it, because the Secret was brought by a user"), ContainSubstring("one-talosconfig expires soon; "+"replace it, because the Secret was brought by a user")))
		})
	}
}

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

// After a move to another management cluster all UIDs are others.
func TestKubeconfigIsBoundAgainAfterAMove(t *testing.T) {
	g := NewWithT(t)
	w := newWorld(t)
	w.settle(w.manager())
	before := w.secret("one-kubeconfig")
	delete(before.Annotations, bootstrapv1.GeneratedAnnotation) // Earlier releases have not set it.
	before.OwnerReferences[0].UID = types.UID("of-another-cluster")
	g.Expect(w.client.Update(t.Context(), before)).To(Succeed())

	w.settle(w.manager())

	after := w.secret("one-kubeconfig")
	g.Expect(metav1.IsControlledBy(after, w.controlPlane())).To(BeTrue())
	g.Expect(after.OwnerReferences).To(HaveLen(1))
	g.Expect(after.Annotations).To(HaveKey(bootstrapv1.GeneratedAnnotation))
	g.Expect(after.Data).To(Equal(before.Data))
}

func TestTalosconfigNamesTheMachinesThatStay(t *testing.T) {
	g := NewWithT(t)
	w, r := scaled(t, 3)
	endpoints := func() []string {
		_, endpoints, err := secrets.ParseTalosconfig(w.secret("one-talosconfig").Data["talosconfig"])
		g.Expect(err).NotTo(HaveOccurred())
		return endpoints
	}
	addresses := map[string]string{}
	for _, machine := range w.machines() {
		addresses[machine.Name] = addressOf(machine)
	}
	g.Expect(addresses).To(HaveLen(3))
	serial := serialOf(t, w.secret("one-talosconfig"))
	for _, address := range addresses {
		g.Expect(endpoints()).To(ContainElement(address))
	}

	// One reports the virtual address as its own, and one is being deleted.
	machines := w.machines()
	holder, leaving := machines[0], machines[1]
	holder.Status.Addresses = append(holder.Status.Addresses, clusterv1.MachineAddress{Type: clusterv1.MachineInternalIP, Address: w.endpoint()})
	g.Expect(w.client.Status().Update(t.Context(), holder)).To(Succeed())
	leaving.Finalizers = append(leaving.Finalizers, clusterv1.MachineFinalizer)
	g.Expect(w.client.Update(t.Context(), leaving)).To(Succeed())
	g.Expect(w.client.Delete(t.Context(), leaving)).To(Succeed())
	g.Expect(w.reconcile(r)).To(Succeed())

	g.Expect(endpoints()).To(And(
		HaveLen(2), ContainElement(addresses[holder.Name]), Not(ContainElement(w.endpoint())), Not(ContainElement(addresses[leaving.Name]))))
	g.Expect(serialOf(t, w.secret("one-talosconfig"))).To(Equal(serial), "who an administrator is does not change")

	// The endpoint becomes the address of a Machine.
	w.changeEndpoint(addresses[holder.Name])
	g.Expect(w.reconcile(r)).To(Succeed())
	g.Expect(endpoints()).NotTo(ContainElement(addresses[holder.Name]))
	config, err := clientcmd.Load(w.secret("one-kubeconfig").Data["value"])
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(config.Clusters[testCluster].Server).To(Equal("https://" + addresses[holder.Name] + ":6443"))
}

func TestExpiringCertificatesAreTold(t *testing.T) {
	bundle, err := testBundle()
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	cas, err := bundle.CAExpiries()
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	for name, tc := range map[string]struct {
		at     time.Time
		status metav1.ConditionStatus
		reason string
		first  string
	}{
		"a new cluster":          {testTime, metav1.ConditionFalse, controlplanev1.CertificatesNotExpiringReason, cas.Kubernetes.UTC().Format(time.RFC3339) + ": the CA of Kubernetes expires\n"},
		"years later":            {testTime.AddDate(5, 0, 0), metav1.ConditionFalse, controlplanev1.CertificatesNotExpiringReason, ": the CA of Kubernetes expires\n"},
		"200 days before":        {cas.Kubernetes.AddDate(0, 0, -200), metav1.ConditionFalse, controlplanev1.CertificatesNotExpiringReason, ": the CA of Kubernetes expires\n"},
		"179 days before":        {cas.Kubernetes.AddDate(0, 0, -179), metav1.ConditionTrue, controlplanev1.CertificatesExpiringReason, ": the CA of Kubernetes expires soon; " + "no CA is replaced by this release, see the documentation of secrets" + "\n"},
		"after they have gone":   {cas.Kubernetes.AddDate(0, 0, 1), metav1.ConditionTrue, controlplanev1.CertificatesExpiredReason, ": the CA of Kubernetes has expired; " + "no CA is replaced by this release, see the documentation of secrets" + "\n"},
		"long after they did so": {cas.Kubernetes.AddDate(3, 0, 1), metav1.ConditionTrue, controlplanev1.CertificatesExpiredReason, ": the CA of Kubernetes has expired; " + "no CA is replaced by this release, see the documentation of secrets" + "\n"},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			w := newWorld(t)
			r := w.manager()
			w.settle(r)
			w.clock.SetTime(tc.at)
			w.settle(r)

			controlPlane := w.controlPlane()
			condition := conditions.Get(controlPlane, controlplanev1.CertificatesExpiringCondition)
			g.Expect(condition.Status).To(Equal(tc.status), condition.Message)
			g.Expect(condition.Reason).To(Equal(tc.reason))
			lines := strings.SplitAfterN(condition.Message, "\n", 2)
			g.Expect(lines[0]).To(HaveSuffix(tc.first))
			g.Expect(strings.Count(condition.Message, "\n")).To(Equal(5), "four CAs and two client certificates")

			// It is the same at the next passes, also of another manager.
			w.clock.SetTime(tc.at.Add(time.Minute))
			w.settle(w.manager())
			g.Expect(w.controlPlane().ResourceVersion).To(Equal(controlPlane.ResourceVersion))
		})
	}
}

func TestExpiryIsUnknownWithoutABundle(t *testing.T) {
	g := NewWithT(t)
	w := newWorld(t)
	w.settle(w.manager())
	g.Expect(w.client.Delete(t.Context(), w.secret("one-talos"))).To(Succeed())
	g.Expect(w.reconcile(w.manager())).To(Succeed())

	condition := conditions.Get(w.controlPlane(), controlplanev1.CertificatesExpiringCondition)
	g.Expect(condition.Status).To(Equal(metav1.ConditionUnknown))
	g.Expect(condition.Reason).To(Equal(controlplanev1.CertificatesExpiryUnknownReason))
}

func TestMetricsOfCertificatesGoWithTheControlPlane(t *testing.T) {
	g := NewWithT(t)
	w := newWorld(t)
	r := w.manager()
	w.settle(r)
	w.askForRenewal()
	w.settle(r)
	registry := prometheus.NewRegistry()
	g.Expect(registry.Register(r.Metrics)).To(Succeed())
	shown := func() map[string]float64 {
		families, err := registry.Gather()
		g.Expect(err).NotTo(HaveOccurred())
		found := map[string]float64{}
		for _, family := range families {
			for _, metric := range family.GetMetric() {
				g.Expect(metric.GetLabel()).To(ContainElement(HaveField("Value", HaveValue(Equal(testCluster)))))
				found[family.GetName()+" "+metric.GetLabel()[0].GetValue()] = metric.GetGauge().GetValue() + metric.GetCounter().GetValue()
			}
		}
		return found
	}
	g.Expect(shown()).To(And(
		HaveKey("capi_talos_certificate_expiry_timestamp_seconds etcd-ca"),
		HaveKeyWithValue("capi_talos_certificate_expiry_timestamp_seconds kubeconfig", BeEquivalentTo(testTime.Add(secrets.ClientConfigLife).Unix())),
		HaveKeyWithValue("capi_talos_certificate_renewals_total talosconfig", BeEquivalentTo(1)),
	))

	controlPlane := w.controlPlane()
	controlPlane.Finalizers = nil
	g.Expect(w.client.Update(t.Context(), controlPlane)).To(Succeed())
	g.Expect(client.IgnoreNotFound(w.client.Delete(t.Context(), controlPlane))).To(Succeed())
	_, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: testKey})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(shown()).To(BeEmpty())
}
