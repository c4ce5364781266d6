package controllers

import (
	"encoding/json"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/cluster-api/util/conditions"

	addonv1 "github.com/capi-talos/capi-talos/addons/api/v1alpha1"
	"github.com/capi-talos/capi-talos/addons/internal/naming"
	"github.com/capi-talos/capi-talos/addons/internal/release"
	helmfake "github.com/capi-talos/capi-talos/addons/internal/release/fake"
)

// TestAReleaseThatTheAddonHasNotMadeIsNotActedOn: somebody may write one by hand, for a
// Cluster that the add-on does not select, or for a release of another name.
func TestAReleaseThatTheAddonHasNotMadeIsNotActedOn(t *testing.T) {
	owned := func(by *addonv1.TalosClusterAddon) []metav1.OwnerReference {
		return []metav1.OwnerReference{*metav1.NewControllerRef(by, addonv1.GroupVersion.WithKind(addonv1.TalosClusterAddonKind))}
	}
	for name, change := range map[string]func(*addonv1.TalosClusterAddonRelease){
		"without an owner":       func(r *addonv1.TalosClusterAddonRelease) { r.OwnerReferences = nil },
		"with another owner":     func(r *addonv1.TalosClusterAddonRelease) { r.OwnerReferences = owned(addonOf("other")) },
		"of another name":        func(r *addonv1.TalosClusterAddonRelease) { r.Name = "forged" },
		"of another release":     func(r *addonv1.TalosClusterAddonRelease) { r.Spec.ReleaseName = "other" },
		"in another namespace":   func(r *addonv1.TalosClusterAddonRelease) { r.Spec.ReleaseNamespace = "kube-system" },
		"for a Cluster in vain":  func(r *addonv1.TalosClusterAddonRelease) { r.Spec.ClusterName = "red" },
		"without labels as well": func(r *addonv1.TalosClusterAddonRelease) { r.Labels, r.Spec.ReleaseName = nil, "other" },
	} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t, clusterOf("blue", nil), clusterOf("red", nil), addonOf("demo"))
			b.settle()
			forged := &addonv1.TalosClusterAddonRelease{
				ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: naming.Release("demo", "blue"), Labels: naming.Labels("demo", "blue"), OwnerReferences: owned(addonOf("demo"))},
				Spec: addonv1.TalosClusterAddonReleaseSpec{
					ClusterName: "blue", AddonName: "demo", ReleaseName: "demo", ReleaseNamespace: "default", DeletionPolicy: addonv1.DeletionUninstall, TimeoutSeconds: ptr.To(int32(60)),
				},
			}
			change(forged)
			b.create(forged)
			_, err := b.releases.Reconcile(t.Context(), requestFor(forged))
			b.Expect(err).NotTo(HaveOccurred())
			_, err = b.releases.Reconcile(t.Context(), requestFor(forged))
			b.Expect(err).NotTo(HaveOccurred())
			for _, cluster := range []string{"blue", "red"} {
				b.Expect(b.clusters.of(cluster).Calls()).To(BeEmpty())
			}
			found := &addonv1.TalosClusterAddonRelease{}
			b.Expect(b.client.Get(t.Context(), requestFor(forged).NamespacedName, found)).To(Succeed())
			b.Expect(reason(found, addonv1.ReleasedCondition)).To(Equal("False ReleaseConflict"))
		})
	}
}

// TestLongTextsOfOthersFitIntoTheStatus: the API server refuses a status with a longer one,
// and nothing could be told any more.
func TestLongTextsOfOthersFitIntoTheStatus(t *testing.T) {
	long := strings.Repeat("é", 20_000)
	b := newBed(t, clusterOf("blue", on), addonOf("demo", func(a *addonv1.TalosClusterAddon) { a.Annotations = map[string]string{addonv1.PlanAnnotation: ""} }))
	b.clusters.of("blue").Fail(helmfake.Install, helmfake.Fault{Err: &release.RefusedError{Reason: addonv1.ChartInvalidReason, Message: long}})
	b.settle()
	b.Expect(b.release("demo", "blue").Status.Plan.Message).To(And(HaveSuffix("é..."), Satisfy(func(text string) bool { return len(text) <= 1024 })))

	b.clusters.of("blue").Set(release.Target{Namespace: "default", Name: "demo"}, release.Revision{
		Number: -1, Status: release.Deployed, Chart: long, Version: long, Digest: long, Owner: naming.Owner(namespace, "blue", "demo"), At: b.clock.Now(),
	})
	b.clusters.of("blue").Fail(helmfake.Upgrade, helmfake.Fault{Err: &release.RefusedError{Reason: addonv1.ChartInvalidReason, Message: long}})
	edit(b, b.addon("demo"), func(a *addonv1.TalosClusterAddon) { a.Annotations = nil })
	b.settle()
	found := b.release("demo", "blue")
	b.Expect(len(found.Status.Failure.Message)).To(BeNumerically("<=", 2048))
	deployed := found.Status.Deployed
	b.Expect(deployed.Revision).To(BeZero())
	b.Expect([]int{len(deployed.Chart), len(deployed.Version), len(deployed.Digest)}).To(HaveEach(BeNumerically("<=", 250)))
	b.Expect([]int{len(deployed.Version), len(deployed.Digest)}).To(HaveEach(BeNumerically("<=", 128)))
}

// TestALongForceIsHeededOnce: what is kept of the annotation is a text.
func TestALongForceIsHeededOnce(t *testing.T) {
	b := newBed(t)
	s := &releaseScope{addon: addonOf("demo"), release: &addonv1.TalosClusterAddonRelease{}}
	s.addon.Annotations = map[string]string{addonv1.ForceAnnotation: "x" + strings.Repeat("é", 500)}
	b.releases.heedForce(s)
	kept, err := json.Marshal(s.release.Status)
	b.Expect(err).NotTo(HaveOccurred())
	read := addonv1.TalosClusterAddonReleaseStatus{}
	b.Expect(json.Unmarshal(kept, &read)).To(Succeed())
	b.Expect(len(read.LastForced)).To(And(BeNumerically(">", 200), BeNumerically("<=", 256)))
	s.release.Status = read
	s.release.Status.Failure.Count = 7
	b.releases.heedForce(s)
	b.Expect(s.release.Status.Failure.Count).To(Equal(int32(7)), "it was heeded before")
}

// TestCredentialsForAnotherScheme: those of a registry are none for a repository, and the
// other way round.
func TestCredentialsForAnotherScheme(t *testing.T) {
	repository := func(a *addonv1.TalosClusterAddon) { a.Spec.Source.Repository.CredentialsSecretName = "login" }
	registry := func(a *addonv1.TalosClusterAddon) {
		a.Spec.Source = addonv1.AddonSource{Registry: addonv1.RegistrySource{URL: "oci://example.com/demo", CredentialsSecretName: "login"}}
	}
	ca := func(a *addonv1.TalosClusterAddon) { a.Spec.Source.Repository.CASecretName = "login" }
	for name, tt := range map[string]struct {
		of      func(*addonv1.TalosClusterAddon)
		secret  corev1.Secret
		message string
	}{
		"of a registry for a repository": {repository, corev1.Secret{Type: corev1.SecretTypeDockerConfigJson}, "Secret login is of type kubernetes.io/dockerconfigjson; this source needs one of type kubernetes.io/basic-auth"},
		"of a repository for a registry": {registry, corev1.Secret{Type: corev1.SecretTypeBasicAuth}, "Secret login is of type kubernetes.io/basic-auth; this source needs one of type kubernetes.io/dockerconfigjson"},
		"no certificates":                {ca, corev1.Secret{Type: corev1.SecretTypeTLS, Data: map[string][]byte{"tls.key": []byte("hunter2")}}, "Secret login has no key ca.crt"},
	} {
		t.Run(name, func(t *testing.T) {
			tt.secret.ObjectMeta = metav1.ObjectMeta{Namespace: namespace, Name: "login"}
			b := newBed(t, &tt.secret, clusterOf("blue", on), addonOf("demo", tt.of))
			b.settle()
			found := conditions.Get(b.addon("demo"), addonv1.ChartAvailableCondition)
			b.Expect(found).To(And(HaveField("Reason", addonv1.SecretInvalidReason), HaveField("Message", tt.message)))
			b.Expect(b.shelf.asked).To(BeZero(), "nobody is asked")
		})
	}
}

// TestWhatIsRefusedIsACondition, with the reason that says what to mend.
func TestWhatIsRefusedIsACondition(t *testing.T) {
	for _, refused := range []string{addonv1.ValuesInvalidReason, addonv1.ChartInvalidReason, addonv1.CRDConflictReason, addonv1.ReleaseConflictReason} {
		t.Run(refused, func(t *testing.T) {
			b := newBed(t, clusterOf("blue", on), addonOf("demo", func(a *addonv1.TalosClusterAddon) { a.Spec.Failure.Retries = ptr.To(int32(0)) }))
			b.clusters.of("blue").Fail(helmfake.Install, helmfake.Fault{Err: &release.RefusedError{Reason: refused, Message: "mend it"}})
			b.settle()
			found := conditions.Get(b.release("demo", "blue"), addonv1.ReleasedCondition)
			b.Expect(found).To(And(HaveField("Status", metav1.ConditionFalse), HaveField("Reason", refused), HaveField("Message", ContainSubstring("mend it"))))
		})
	}
}
