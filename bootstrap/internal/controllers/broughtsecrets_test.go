package controllers

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	clusterctlv1 "sigs.k8s.io/cluster-api/cmd/clusterctl/api/v1alpha3"

	bootstrapv1 "github.com/capi-talos/capi-talos/bootstrap/api/v1beta1"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/secrets"
	"github.com/capi-talos/capi-talos/test/support/builders"
)

// SealedSecrets and External Secrets own the Secrets that they make, and stay
// behind in a move.
func TestAUsersSecretWithAnOwnerIsMovedAlong(t *testing.T) {
	for name, tc := range map[string]struct {
		owner metav1.OwnerReference
		moved bool
	}{
		"an ExternalSecret":         {metav1.OwnerReference{APIVersion: "external-secrets.io/v1", Kind: "ExternalSecret", Name: "one", UID: "e"}, true},
		"a SealedSecret":            {metav1.OwnerReference{APIVersion: "bitnami.com/v1alpha1", Kind: "SealedSecret", Name: "one-talos", UID: "s"}, true},
		"another Cluster":           {metav1.OwnerReference{APIVersion: clusterv1.GroupVersion.String(), Kind: "Cluster", Name: "two", UID: "two"}, true},
		"a Cluster of another kind": {metav1.OwnerReference{APIVersion: "example.com/v1", Kind: "Cluster", Name: clusterName, UID: "x"}, true},
		"the Cluster":               {builders.OwnedByCluster(newCluster())[0], false},
		"the control plane":         {metav1.OwnerReference{APIVersion: "controlplane.cluster.x-k8s.io/v1", Kind: "OtherControlPlane", Name: "one-cp", UID: "cp"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			machine, config := newMachine(cpName, true)
			users := usersBundle()
			users.OwnerReferences = []metav1.OwnerReference{tc.owner}
			w := newWorld(t, newCluster(), machine, config, users)
			w.settle(cpName)

			bundle := w.secret("one-talos")
			w.Expect(bundle.OwnerReferences).To(Equal(users.OwnerReferences))
			if tc.moved {
				w.Expect(bundle.Labels).To(HaveKey(clusterctlv1.ClusterctlMoveLabel))
			} else {
				w.Expect(bundle.Labels).NotTo(HaveKey(clusterctlv1.ClusterctlMoveLabel))
			}
		})
	}
}

// Only what carries the label of the Cluster is in the cache, and watched.
func TestASecretOfAUserIsLabelledSoThatItIsWatched(t *testing.T) {
	other, err := secrets.NewBundle(testTime, "v1.13", nil)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	for name, content := range map[string][]byte{"good": sharedBundle().YAML(), "no bundle": []byte("?"), "another bundle": other.YAML()} {
		t.Run(name, func(t *testing.T) {
			machine, config := newMachine(cpName, true)
			w := newWorld(t, newCluster(), machine, config, usersBundle())
			w.settle(cpName)
			bundle := w.secret("one-talos")
			bundle.Labels = nil
			bundle.Data[secrets.BundleKey] = content
			w.Expect(w.client.Update(t.Context(), bundle)).To(Succeed())

			w.settle(cpName)

			w.Expect(w.secret("one-talos").Labels).To(HaveKeyWithValue(clusterv1.ClusterNameLabel, clusterName))
			w.Expect(w.secret("one-talos").Data[secrets.BundleKey]).To(Equal(content))
		})
	}
	t.Run("a CA that cannot be used", func(t *testing.T) {
		machine, config := newMachine(cpName, true)
		w := newWorld(t, newCluster(), machine, config, &corev1.Secret{ObjectMeta: objectMeta(namespace, "one-ca")})
		w.settle(cpName)
		w.expect(cpName, "CertificatesAvailable", metav1.ConditionFalse, bootstrapv1.BundleInvalidReason, "")
		w.Expect(w.secret("one-ca").Labels).To(HaveKeyWithValue(clusterv1.ClusterNameLabel, clusterName))
	})
}

// A Secret that is restored without the label is seen by nobody: so it is looked for.
func TestAMissingBundleIsLookedForAgain(t *testing.T) {
	w := bundleWorld(t)
	w.delete("one-talos")
	w.settle(cpName)
	for range 20 {
		result, err := w.reconcile(cpName)
		w.Expect(err).NotTo(HaveOccurred())
		w.Expect(result.RequeueAfter).To(And(BeNumerically(">=", time.Minute), BeNumerically("<=", 75*time.Second)))
	}
}

// withEncryption is the shared bundle with another key for Secrets in etcd.
func withEncryption(t *testing.T, edit func(secretbox, aescbc *string)) []byte {
	t.Helper()
	g := NewWithT(t)
	bundle, err := secrets.ParseBundle(sharedBundle().YAML())
	g.Expect(err).NotTo(HaveOccurred())
	parsed := bundle.Machinery()
	edit(&parsed.Secrets.SecretboxEncryptionSecret, &parsed.Secrets.AESCBCEncryptionSecret)

	return encoded(g, parsed)
}

// A changed key makes API servers that cannot read what the others have stored.
func TestBadInputEncryptionKeyOfABundleChanged(t *testing.T) {
	const key = "QUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUE="
	for name, content := range map[string][]byte{
		"another key":       withEncryption(t, func(secretbox, _ *string) { *secretbox = key }),
		"another algorithm": withEncryption(t, func(secretbox, aescbc *string) { *secretbox, *aescbc = "", *secretbox }),
	} {
		t.Run(name, func(t *testing.T) {
			w := bundleWorld(t)
			w.setBundle(content)
			w.expectRefusedBundle(bootstrapv1.BundleChangedReason)

			w.setBundle(sharedBundle().YAML())
			w.settle(cpName, "one-cp-late")
			w.expect("one-cp-late", bootstrapv1.TalosConfigReadyCondition, metav1.ConditionTrue, "", "")
		})
	}
}

// What an earlier release has recorded stays good, and is completed.
func TestTheRecordsOfAnEarlierReleaseAreCompleted(t *testing.T) {
	machine, config := newMachine(cpName, true)
	w := newWorld(t, newCluster(), machine, config, usersBundle())
	w.settle(cpName)
	ca := w.secret("one-ca")
	w.Expect(ca.Annotations).To(And(HaveKey("bootstrap.cluster.x-k8s.io/talos-encryption-digest"), HaveKey("bootstrap.cluster.x-k8s.io/talos-cluster-network")))
	complete := ca.Annotations
	ca.Annotations = map[string]string{
		bootstrapv1.GeneratedAnnotation: "", bootstrapv1.BundleDigestAnnotation: complete[bootstrapv1.BundleDigestAnnotation],
	}
	w.Expect(w.client.Update(t.Context(), ca)).To(Succeed())
	w.settle(cpName)
	w.Expect(w.secret("one-ca").Annotations).To(Equal(complete))
	w.expect(cpName, "CertificatesAvailable", metav1.ConditionTrue, "", "")
}
