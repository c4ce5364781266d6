package controllers

import (
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	clusterctlv1 "sigs.k8s.io/cluster-api/cmd/clusterctl/api/v1alpha3"

	bootstrapv1 "github.com/capi-talos/capi-talos/bootstrap/api/v1beta1"
)

func TestSecretsThatLostTheirOwnersAreOwnedAgain(t *testing.T) {
	machine, config := newMachine(cpName, true)
	w := newWorld(t, newCluster(), machine, config)
	w.settle(cpName)
	for _, name := range []string{"one-talos", "one-ca", "one-talosconfig", cpName} {
		secret := w.secret(name)
		w.Expect(secret.OwnerReferences).NotTo(BeEmpty(), name)
		secret.OwnerReferences = nil
		w.Expect(w.client.Update(t.Context(), secret)).To(Succeed())
	}

	w.settle(cpName)

	for _, name := range []string{"one-talos", "one-ca", "one-talosconfig"} {
		w.Expect(w.secret(name).OwnerReferences).To(ConsistOf(And(HaveField("Kind", "Cluster"), HaveField("Controller", BeNil()))), name)
	}
	w.Expect(w.secret(cpName).OwnerReferences).To(ConsistOf(And(HaveField("UID", config.UID), HaveField("Controller", HaveValue(BeTrue())))))
	w.expect(cpName, "Ready", "True", "", "")
}

func TestAUsersBundleIsMovedAlongAndOutlivesTheCluster(t *testing.T) {
	machine, config := newMachine(cpName, true)
	w := newWorld(t, newCluster(), machine, config, usersBundle())
	w.settle(cpName)

	bundle := w.secret("one-talos")
	w.Expect(bundle.OwnerReferences).To(BeEmpty())
	w.Expect(bundle.Labels).To(HaveKey(clusterctlv1.ClusterctlMoveLabel))
	w.Expect(bundle.Annotations).NotTo(HaveKey(bootstrapv1.GeneratedAnnotation))
	for _, made := range []*corev1.Secret{w.secret("one-ca"), w.secret("one-talosconfig")} {
		w.Expect(made.Labels).NotTo(HaveKey(clusterctlv1.ClusterctlMoveLabel))
		w.Expect(made.OwnerReferences).To(HaveLen(1))
	}
}
