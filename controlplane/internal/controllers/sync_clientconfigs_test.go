package controllers

import (
	"crypto/x509"
	"encoding/pem"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/clientcmd"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

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
