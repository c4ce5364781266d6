package controllers

import (
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	bootstrapv1 "github.com/capi-talos/capi-talos/bootstrap/api/v1beta1"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/secrets"
	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
)

// usersCA is the Secret of a user who brings a Kubernetes CA.
func usersCA() *corev1.Secret {
	return &corev1.Secret{ObjectMeta: objectMeta(namespace, "one-ca"), Data: sharedBundle().CASecretData()}
}

// deleteCluster takes away what goes with a Cluster, as the garbage collector does.
func (w *world) deleteCluster() {
	w.t.Helper()
	ctx := w.t.Context()
	stored := &corev1.SecretList{}
	w.Expect(w.client.List(ctx, stored, client.InNamespace(namespace))).To(Succeed())
	for i := range stored.Items {
		if len(stored.Items[i].OwnerReferences) > 0 {
			w.Expect(w.client.Delete(ctx, &stored.Items[i])).To(Succeed())
		}
	}
	for _, kind := range []client.Object{&bootstrapv1.TalosConfig{}, &clusterv1.Machine{}, &clusterv1.Cluster{}, &controlplanev1.TalosControlPlane{}} {
		w.Expect(w.client.DeleteAllOf(ctx, kind, client.InNamespace(namespace))).To(Succeed())
	}
}

func (w *world) create(objects ...client.Object) {
	w.t.Helper()
	for _, object := range objects {
		w.Expect(w.client.Create(w.t.Context(), object)).To(Succeed())
	}
}

// The Secret with the CA of a user outlives the Cluster, and with it what we have
// recorded there.
func TestAClusterOfAUsersCAIsMadeAgain(t *testing.T) {
	other, err := secrets.NewBundle(testTime, "v1.13", sharedBundle().CASecretData())
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	for name, brought := range map[string]*secrets.Bundle{"with a bundle made anew": nil, "with another bundle of the user": other} {
		t.Run(name, func(t *testing.T) {
			machine, config := newMachine(cpName, true)
			w := newWorld(t, newCluster(), machine, config, usersCA())
			w.settle(cpName)
			former, err := secrets.ParseBundle(w.secret("one-talos").Data["bundle"])
			w.Expect(err).NotTo(HaveOccurred())

			w.deleteCluster()
			if brought != nil {
				users := usersBundle()
				users.Data[secrets.BundleKey] = brought.YAML()
				w.create(users)
			}
			machine, config = newMachine("one-cp-again", true)
			w.create(newCluster(), machine, config)
			w.settle("one-cp-again")

			w.expect("one-cp-again", "CertificatesAvailable", metav1.ConditionTrue, "", "")
			w.expect("one-cp-again", "Ready", metav1.ConditionTrue, "", "")
			bundle, err := secrets.ParseBundle(w.secret("one-talos").Data["bundle"])
			w.Expect(err).NotTo(HaveOccurred())
			w.Expect(bundle.Digest()).NotTo(Equal(former.Digest()))
			w.Expect(bundle.CASecretData()).To(Equal(sharedBundle().CASecretData()))
			w.Expect(w.secret("one-ca").Annotations).To(HaveKeyWithValue(bootstrapv1.BundleDigestAnnotation, bundle.Digest()))

			// From now on it counts.
			w.delete("one-talos")
			w.settle("one-cp-again")
			w.expect("one-cp-again", "CertificatesAvailable", metav1.ConditionFalse, bootstrapv1.BundleMissingReason, "Restore it from a backup")
			w.expectNoSecret("one-talos")
		})
	}
}

// A backup may leave out Secrets, and no restore brings back a status.
func TestARestoreWithoutSecretsMakesNoOtherBundle(t *testing.T) {
	ofTheControlPlane := func(annotations map[string]string) client.Object {
		controlPlane := &controlplanev1.TalosControlPlane{ObjectMeta: objectMeta(namespace, "one-cp")}
		controlPlane.Annotations = annotations
		return controlPlane
	}
	for name, tc := range map[string]struct {
		edit  func(*clusterv1.Cluster, *clusterv1.Machine) client.Object
		shown string
	}{
		"a Machine that names its configuration": {func(_ *clusterv1.Cluster, m *clusterv1.Machine) client.Object {
			m.Spec.Bootstrap.DataSecretName = ptr.To(cpName)
			return nil
		}, "Machine " + cpName},
		"a Machine with a provider ID": {func(_ *clusterv1.Cluster, m *clusterv1.Machine) client.Object {
			m.Spec.ProviderID = "talos://fleet/x"
			return nil
		}, "Machine " + cpName},
		"a control plane with the digest of the bundle": {func(c *clusterv1.Cluster, _ *clusterv1.Machine) client.Object {
			c.Spec.ControlPlaneRef.Kind = controlplanev1.TalosControlPlaneKind
			return ofTheControlPlane(map[string]string{controlplanev1.BundleDigestAnnotation: sharedBundle().Digest()})
		}, "TalosControlPlane one-cp"},
		"a control plane with the intent to bootstrap": {func(c *clusterv1.Cluster, _ *clusterv1.Machine) client.Object {
			c.Spec.ControlPlaneRef.Kind = controlplanev1.TalosControlPlaneKind
			return ofTheControlPlane(map[string]string{controlplanev1.BootstrapIntentAnnotation: "{}"})
		}, "TalosControlPlane one-cp"},
	} {
		t.Run(name, func(t *testing.T) {
			cluster := newCluster()
			machine, config := newMachine(cpName, true)
			objects := []client.Object{cluster, machine, config}
			if controlPlane := tc.edit(cluster, machine); controlPlane != nil {
				objects = append(objects, controlPlane)
			}
			late, lateConfig := newMachine("one-cp-late", true)
			w := newWorld(t, append(objects, late, lateConfig)...)
			w.settle(cpName, "one-cp-late")
			for _, name := range []string{cpName, "one-cp-late"} {
				w.expect(name, "CertificatesAvailable", metav1.ConditionFalse, bootstrapv1.BundleMissingReason, tc.shown)
				w.expect(name, "Ready", metav1.ConditionFalse, bootstrapv1.WaitingForCertificatesReason, "")
				w.expectNoSecret(name)
			}
			w.expectNoSecret("one-talos")
			w.expectNoSecret("one-ca")

			// The backup of the Secret mends it.
			w.create(usersBundle())
			w.settle(cpName, "one-cp-late")
			w.expect("one-cp-late", "Ready", metav1.ConditionTrue, "", "")
			w.Expect(w.secret("one-ca").Data).To(Equal(sharedBundle().CASecretData()))
		})
	}
}

// The configuration of a worker comes from the bundle, too.
func TestAConfiguredWorkerShowsThatItsClusterHasBegun(t *testing.T) {
	cluster := newCluster()
	cluster.Spec.ControlPlaneRef = clusterv1.ContractVersionedObjectReference{}
	machine, config := newMachine(workerName, false)
	machine.Spec.Bootstrap.DataSecretName = ptr.To(workerName)
	w := newWorld(t, cluster, machine, config)
	w.settle(workerName)
	w.expect(workerName, "CertificatesAvailable", metav1.ConditionFalse, bootstrapv1.BundleMissingReason, workerName)
	w.expectNoSecret("one-talos")
}

// Where the record on the CA is lost with all that was rendered, the control plane
// knows the bundle.
func TestAnotherBundleThanTheControlPlaneRecordsIsRefused(t *testing.T) {
	other, err := secrets.NewBundle(testTime, "v1.13", nil)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	cluster := newCluster()
	cluster.Spec.ControlPlaneRef.Kind = controlplanev1.TalosControlPlaneKind
	controlPlane := &controlplanev1.TalosControlPlane{ObjectMeta: objectMeta(namespace, "one-cp")}
	controlPlane.Annotations = map[string]string{controlplanev1.BundleDigestAnnotation: sharedBundle().Digest()}
	restored := usersBundle()
	restored.Data[secrets.BundleKey] = other.YAML()
	machine, config := newMachine(cpName, true)
	w := newWorld(t, cluster, controlPlane, machine, config, restored)

	w.settle(cpName)
	w.expect(cpName, "CertificatesAvailable", metav1.ConditionFalse, bootstrapv1.BundleChangedReason, "one-talos")
	w.expectNoSecret("one-ca")

	w.setBundle(sharedBundle().YAML())
	w.settle(cpName)
	w.expect(cpName, "Ready", metav1.ConditionTrue, "", "")
}

// A bundle that was lost before anything was made from it is no loss.
func TestARecordOfTheProviderAloneStillCounts(t *testing.T) {
	machine, config := newMachine(cpName, true)
	cluster := newCluster()
	cluster.Spec.ControlPlaneEndpoint = clusterv1.APIEndpoint{}
	w := newWorld(t, cluster, machine, config)
	w.settle(cpName)
	w.delete("one-talos")
	w.settle(cpName)
	w.expect(cpName, "CertificatesAvailable", metav1.ConditionFalse, bootstrapv1.BundleMissingReason, "delete Secret one-ca")

	w.delete("one-ca")
	w.settle(cpName)
	w.expect(cpName, "CertificatesAvailable", metav1.ConditionTrue, "", "")
}
