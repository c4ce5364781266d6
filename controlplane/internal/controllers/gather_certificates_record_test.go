package controllers

import (
	"testing"

	. "github.com/onsi/gomega"
	"go.yaml.in/yaml/v4"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/cluster-api/util/conditions"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/secrets"
	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
)

// record writes on the Secret with the CA with what the cluster began, as the
// bootstrap provider does.
func (w *world) record(annotation, value string) {
	w.t.Helper()
	ca := w.secret(secrets.CAName(testCluster))
	bundle, err := testBundle()
	NewWithT(w.t).Expect(err).NotTo(HaveOccurred())
	ca.Annotations = map[string]string{
		"bootstrap.cluster.x-k8s.io/talos-bundle-digest": bundle.Digest(),
		"bootstrap.cluster.x-k8s.io/" + annotation:       value,
	}
	NewWithT(w.t).Expect(w.client.Update(w.t.Context(), ca)).To(Succeed())
}

// beginRollout begins one that deletes before it makes.
func (w *world) beginRollout() {
	w.change(func(controlPlane *controlplanev1.TalosControlPlane) {
		controlPlane.Spec.Version = "v1.36.4"
		controlPlane.Spec.Rollout.Strategy.Type = controlplanev1.RollingUpdateStrategyType
		controlPlane.Spec.Rollout.Strategy.RollingUpdate.MaxSurge = ptr.To(intstr.FromInt32(0))
	})
}

const otherNetwork = `{"pods":["10.244.0.0/16"],"services":["10.96.0.0/12"],"serviceDomain":"former.local","apiServerPort":6443}`

// The replacement would get no configuration.
func TestNoMachineGoesWhoseReplacementWouldHaveAnotherNetwork(t *testing.T) {
	g := NewWithT(t)
	w, r := changing(t, 3)
	w.record("talos-cluster-network", otherNetwork)
	before := machineNames(&scope{machines: w.machines()})
	w.beginRollout()
	w.settle(r)
	g.Expect(machineNames(&scope{machines: w.machines()})).To(Equal(before))
	g.Expect(w.staying()).To(Equal(3))
	g.Expect(conditions.GetMessage(w.controlPlane(), controlplanev1.RollingOutCondition)).To(ContainSubstring("spec.clusterNetwork.serviceDomain was former.local"))

	w.record("talos-cluster-network", "")
	w.until(r, func() bool {
		for _, machine := range w.machines() {
			if machine.Spec.Version != "v1.36.4" {
				return false
			}
		}
		return w.has(3)()
	})
}

// A Secret that outlived another Cluster holds nothing up.
func TestARecordOfAnotherClusterKeepsNoFirstMachineAway(t *testing.T) {
	g := NewWithT(t)
	w := newWorld(t)
	w.createSecrets()
	w.record("talos-cluster-network", otherNetwork)
	ca := w.secret(secrets.CAName(testCluster))
	ca.Annotations["bootstrap.cluster.x-k8s.io/talos-encryption-digest"] = "another"
	g.Expect(w.client.Update(t.Context(), ca)).To(Succeed())
	r := w.manager()
	g.Expect(w.reconcile(r)).To(Succeed())
	g.Expect(w.machines()).To(HaveLen(1))
}

func TestABundleWithAnotherEncryptionKeyIsNotUsed(t *testing.T) {
	g := NewWithT(t)
	w, r := changing(t, 3)
	bundle, err := testBundle()
	g.Expect(err).NotTo(HaveOccurred())
	w.record("talos-encryption-digest", bundle.EncryptionDigest())
	w.settle(r)
	g.Expect(conditions.IsTrue(w.controlPlane(), controlplanev1.CertificatesAvailableCondition)).To(BeTrue())

	other, err := secrets.ParseBundle(bundle.YAML())
	g.Expect(err).NotTo(HaveOccurred())
	other.Machinery().Secrets.SecretboxEncryptionSecret = "QUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUE="
	raw, err := yaml.Marshal(other.Machinery())
	g.Expect(err).NotTo(HaveOccurred())
	stored := w.secret(secrets.BundleName(testCluster))
	stored.Data[secrets.BundleKey] = raw
	g.Expect(w.client.Update(t.Context(), stored)).To(Succeed())
	w.beginRollout()
	w.settle(r)
	g.Expect(conditions.GetReason(w.controlPlane(), controlplanev1.CertificatesAvailableCondition)).To(Equal(controlplanev1.CertificatesChangedReason))
	g.Expect(w.staying()).To(Equal(3))
}
