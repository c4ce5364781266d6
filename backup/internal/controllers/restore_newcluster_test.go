package controllers

import (
	"errors"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	backupv1 "github.com/capi-talos/capi-talos/backup/api/v1alpha1"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/secrets"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient/fake"
	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
)

// newClusterBed is one whose Cluster is new: it has no secrets, and its machines no data.
func newClusterBed(t *testing.T) *restoreBed {
	t.Helper()
	b := newRestoreBed(t)
	cluster := &clusterv1.Cluster{}
	b.Expect(b.client.Get(b.t.Context(), client.ObjectKey{Namespace: namespace, Name: "prod"}, cluster)).To(Succeed())
	cluster.Status.Initialization.ControlPlaneInitialized = ptr.To(false)
	b.Expect(b.client.Status().Update(b.t.Context(), cluster)).To(Succeed())
	b.Expect(b.client.Delete(b.t.Context(), b.bundleSecret("prod"))).To(Succeed())
	for _, node := range b.nodes {
		node.Update(func(s *fake.State) {
			s.EtcdData, s.Members, s.Services = false, nil, []talosclient.Service{{ID: "etcd", State: "Preparing", Started: b.clock.Now()}}
		})
	}
	b.annotateControlPlane(controlplanev1.RestoreAnnotation, "back")

	return b
}

func TestANewClusterIsMadeOfABackup(t *testing.T) {
	b := newClusterBed(t)
	b.restore(newCluster)
	b.until(hasEnded)
	b.Expect(says(b.theRestore(), backupv1.RestoreReadyCondition)).To(Equal("True Ready"))
	b.Expect(b.bundleSecret("prod").Data[secrets.BundleKey]).To(MatchYAML(bundleOf(b, "prod").YAML()))
	b.Expect(b.bundleSecret("prod").Labels).To(HaveKeyWithValue(clusterv1.ClusterNameLabel, "prod"))
	b.Expect(b.wipes).To(BeEmpty(), "they have never run")
	b.Expect(b.offences).To(BeEmpty())
	annotations := b.theControlPlane().Annotations
	b.Expect(annotations).NotTo(HaveKey(controlplanev1.RestoreInProgressAnnotation))
	b.Expect(annotations).To(HaveKeyWithValue(controlplanev1.ManifestsAnnotation, "restored"), "what names the former endpoint is applied anew")
}

func TestANewClusterHoldsNoOtherSecrets(t *testing.T) {
	b := newClusterBed(t)
	b.createBundle("other")
	other := b.bundleSecret("other")
	other.ObjectMeta.Name, other.ResourceVersion, other.UID = secrets.BundleName("prod"), "", ""
	b.create(other)
	b.restore(newCluster)
	b.until(hasEnded)
	b.Expect(says(b.theRestore(), backupv1.CheckedCondition)).To(Equal("False OtherCluster"))
	b.Expect(b.bundleSecret("prod").Data[secrets.BundleKey]).To(MatchYAML(bundleOf(b, "other").YAML()))
}

// TestANewClusterWithoutTheAnnotation has an etcd of its own, and is left alone.
func TestANewClusterWithoutTheAnnotation(t *testing.T) {
	b := newClusterBed(t)
	b.annotateControlPlane(controlplanev1.RestoreAnnotation, "another")
	b.restore(newCluster)
	b.until(func(r *backupv1.TalosEtcdRestore) bool {
		return says(r, backupv1.CheckedCondition) == "Unknown WaitingForControlPlane"
	})
	b.Expect(b.maker.made).To(BeZero())
	b.Expect(b.client.Get(b.t.Context(), client.ObjectKey{Namespace: namespace, Name: secrets.BundleName("prod")}, &corev1.Secret{})).NotTo(Succeed())
}

// TestANewClusterOnMachinesOfOthers fails with its first attempt: nobody can wipe them.
func TestANewClusterOnMachinesOfOthers(t *testing.T) {
	b := newClusterBed(t)
	b.fails = 1
	b.foreignMachine()
	b.restore(newCluster)
	b.until(hasEnded)
	b.Expect(says(b.theRestore(), backupv1.RestoreReadyCondition)).To(Equal("False Failed"))
	b.Expect(b.wipes).To(BeEmpty())
}

// TestANewClusterSaysWhyItCannotBegin: its control plane is held, and its backup was unpacked.
func TestANewClusterSaysWhyItCannotBegin(t *testing.T) {
	b := newClusterBed(t)
	words := apierrors.NewConflict(corev1.Resource("secrets"), "prod-talos", errors.New("changed"))
	b.restores.Client = refusing[*corev1.Secret](b.restores.Client, func() error { return words })
	b.restore(newCluster)
	b.until(func(r *backupv1.TalosEtcdRestore) bool {
		return says(r, backupv1.CheckedCondition) == "Unknown Checking"
	})
	b.step()
	b.Expect(says(b.theRestore(), backupv1.CheckedCondition)).To(Equal("Unknown Checking"), "that passes")
	words = apierrors.NewForbidden(corev1.Resource("secrets"), "prod-talos", errors.New("exceeded quota: keys"))
	for range 2 {
		_, err := b.restores.Reconcile(t.Context(), requestOf(b.theRestore()))
		b.Expect(err).To(MatchError(ContainSubstring("exceeded quota: keys")))
		b.Expect(says(b.theRestore(), backupv1.CheckedCondition)).To(Equal("Unknown CheckFailed"))
		b.Expect(conditions.GetMessage(b.theRestore(), backupv1.CheckedCondition)).To(ContainSubstring("creating Secret prod-talos: secrets \"prod-talos\" is forbidden: exceeded quota: keys"))
	}
	b.Expect(b.maker.made).To(Equal(1), "it is not unpacked again")
	b.startRestores()
	b.until(hasEnded)
	b.Expect(says(b.theRestore(), backupv1.RestoreReadyCondition)).To(Equal("True Ready"))
}
