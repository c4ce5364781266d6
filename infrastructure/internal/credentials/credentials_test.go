package credentials

import (
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clocktesting "k8s.io/utils/clock/testing"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/secrets"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
)

var (
	start   = time.Date(2026, time.June, 1, 12, 0, 0, 0, time.UTC)
	cluster = client.ObjectKey{Namespace: "ns", Name: "one"}
)

// testBundle is made once: keys are dear.
var testBundle = sync.OnceValues(func() (*secrets.Bundle, error) { return secrets.NewBundle(start, "v1.13", nil) })

type fixture struct {
	*Store
	t      *testing.T
	client client.Client
	clock  *clocktesting.FakePassiveClock
	bundle *corev1.Secret
	host   *infrav1.TalosHost
	ca     []byte
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	g := NewWithT(t)
	scheme := runtime.NewScheme()
	g.Expect(corev1.AddToScheme(scheme)).To(Succeed())
	bundle, err := testBundle()
	g.Expect(err).NotTo(HaveOccurred())
	f := &fixture{
		t: t, client: fake.NewClientBuilder().WithScheme(scheme).Build(), clock: clocktesting.NewFakePassiveClock(start), ca: bundle.TalosCA(),
		bundle: &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: secrets.BundleName("one")},
			Data:       map[string][]byte{secrets.BundleKey: bundle.YAML()},
		},
		host: &infrav1.TalosHost{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "h1", UID: "h1-uid"}, Spec: infrav1.TalosHostSpec{Addresses: []string{"192.0.2.1"}}},
	}
	f.Store = New(f.client, f.client, f.clock)
	g.Expect(f.client.Create(t.Context(), f.bundle)).To(Succeed())

	return f
}

func (f *fixture) admin() *corev1.Secret {
	f.t.Helper()
	found := &corev1.Secret{}
	NewWithT(f.t).Expect(f.client.Get(f.t.Context(), client.ObjectKey{Namespace: "ns", Name: "h1-talos-admin"}, found)).To(Succeed())

	return found
}

func (f *fixture) expiry(creds talosclient.Credentials) time.Time {
	f.t.Helper()
	_, notAfter, err := secrets.Validity(creds)
	NewWithT(f.t).Expect(err).NotTo(HaveOccurred())

	return notAfter
}

func TestTheSecretOfAHostOutlivesItsCluster(t *testing.T) {
	g := NewWithT(t)
	f := newFixture(t)
	g.Expect(f.EnsureAdmin(t.Context(), cluster, f.host)).To(Succeed())
	made := f.admin()
	g.Expect(made.Labels).To(And(HaveKeyWithValue(clusterv1.ClusterNameLabel, "one"), HaveKey(infrav1.MoveLabel)))
	g.Expect(metav1.IsControlledBy(made, f.host)).To(BeTrue())
	g.Expect(made.Finalizers).To(Equal([]string{infrav1.TalosHostFinalizer}))

	g.Expect(f.EnsureAdmin(t.Context(), cluster, f.host)).To(Succeed())
	g.Expect(f.admin().ResourceVersion).To(Equal(made.ResourceVersion))

	g.Expect(f.client.Delete(t.Context(), f.bundle)).To(Succeed())
	g.Expect(f.RenewAdmin(t.Context(), cluster, f.host)).To(Succeed())
	creds, err := f.Admin(t.Context(), f.host)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(creds.CA).To(Equal(f.ca))
	reader, err := f.Reader(t.Context(), cluster, f.host)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(reader).To(Equal(creds), "with the bundle gone the administrator looks")

	g.Expect(f.DeleteAdmin(t.Context(), f.host)).To(Succeed())
	g.Expect(f.DeleteAdmin(t.Context(), f.host)).To(Succeed())
	_, err = f.Admin(t.Context(), f.host)
	g.Expect(err).To(MatchError(ErrMissing))
	g.Expect(f.EnsureAdmin(t.Context(), cluster, f.host)).To(MatchError(secrets.ErrBundleMissing))
}

func TestCertificatesAreRenewedAtHalfOfTheirLife(t *testing.T) {
	g := NewWithT(t)
	f := newFixture(t)
	g.Expect(f.EnsureAdmin(t.Context(), cluster, f.host)).To(Succeed())
	admin, err := f.Admin(t.Context(), f.host)
	g.Expect(err).NotTo(HaveOccurred())
	reader, err := f.Reader(t.Context(), cluster, f.host)
	g.Expect(err).NotTo(HaveOccurred())

	f.clock.SetTime(start.Add(time.Hour / 3))
	same, err := f.Reader(t.Context(), cluster, f.host)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(same).To(Equal(reader))

	f.clock.SetTime(start.Add(adminLife * 2 / 3))
	g.Expect(f.RenewAdmin(t.Context(), cluster, f.host)).To(Succeed())
	renewed, err := f.Admin(t.Context(), f.host)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(f.expiry(renewed)).To(BeTemporally(">", f.expiry(admin)))
	later, err := f.Reader(t.Context(), cluster, f.host)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(f.expiry(later)).To(BeTemporally(">", f.clock.Now()))
}

// TestACertificateOfAClockThatWasAheadIsRenewed: the machine does not take it yet.
func TestACertificateOfAClockThatWasAheadIsRenewed(t *testing.T) {
	g := NewWithT(t)
	f := newFixture(t)
	f.clock.SetTime(start.Add(2 * adminLife))
	g.Expect(f.EnsureAdmin(t.Context(), cluster, f.host)).To(Succeed())

	f.clock.SetTime(start)
	g.Expect(f.RenewAdmin(t.Context(), cluster, f.host)).To(Succeed())
	admin, err := f.Admin(t.Context(), f.host)
	g.Expect(err).NotTo(HaveOccurred())
	notBefore, _, err := secrets.Validity(admin)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(notBefore).NotTo(BeTemporally(">", start))
}

// TestASpoiltBundleHoldsNothingUp: a machine that runs is asked with what there is.
func TestASpoiltBundleHoldsNothingUp(t *testing.T) {
	g := NewWithT(t)
	f := newFixture(t)
	g.Expect(f.EnsureAdmin(t.Context(), cluster, f.host)).To(Succeed())
	f.bundle.Data = map[string][]byte{secrets.BundleKey: []byte("?")}
	g.Expect(f.client.Update(t.Context(), f.bundle)).To(Succeed())
	f.clock.SetTime(start.Add(adminLife * 2 / 3))
	g.Expect(f.EnsureAdmin(t.Context(), cluster, f.host)).To(MatchError(secrets.ErrBundleInvalid))
	g.Expect(f.RenewAdmin(t.Context(), cluster, f.host)).To(Succeed())
}

func TestATalosconfigWillDoWhereThereIsNoBundle(t *testing.T) {
	g := NewWithT(t)
	f := newFixture(t)
	bundle, err := secrets.GetBundle(t.Context(), f.client, cluster)
	g.Expect(err).NotTo(HaveOccurred())
	creds, err := bundle.ClientCredentials(secrets.RoleAdmin, start, time.Hour)
	g.Expect(err).NotTo(HaveOccurred())
	talosconfig, err := secrets.Talosconfig("one", nil, creds)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(f.client.Delete(t.Context(), f.bundle)).To(Succeed())
	g.Expect(f.client.Create(t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: secrets.TalosconfigName("one")},
		Data:       map[string][]byte{secrets.TalosconfigKey: talosconfig},
	})).To(Succeed())
	g.Expect(f.EnsureAdmin(t.Context(), cluster, f.host)).To(Succeed())
	g.Expect(f.admin().Data).To(HaveKeyWithValue(infrav1.AdminSecretKey, talosconfig))
}

func TestTheSecretOfAnotherClusterIsReplaced(t *testing.T) {
	g := NewWithT(t)
	f := newFixture(t)
	g.Expect(f.client.Create(t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: AdminName("h1"), Labels: map[string]string{clusterv1.ClusterNameLabel: "two"}},
		Data:       map[string][]byte{infrav1.AdminSecretKey: []byte("context: old")},
	})).To(Succeed())
	g.Expect(f.EnsureAdmin(t.Context(), cluster, f.host)).To(Succeed())
	creds, err := f.Admin(t.Context(), f.host)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(creds.CA).To(Equal(f.ca))
	g.Expect(f.admin().Labels).To(HaveKeyWithValue(clusterv1.ClusterNameLabel, "one"))
}

func TestASecretThatWasStrippedIsBoundToItsHostAgain(t *testing.T) {
	g := NewWithT(t)
	f := newFixture(t)
	g.Expect(f.EnsureAdmin(t.Context(), cluster, f.host)).To(Succeed())
	stripped := f.admin()
	stripped.OwnerReferences, stripped.Finalizers = nil, nil
	g.Expect(f.client.Update(t.Context(), stripped)).To(Succeed())

	g.Expect(f.RenewAdmin(t.Context(), cluster, f.host)).To(Succeed())

	g.Expect(metav1.IsControlledBy(f.admin(), f.host)).To(BeTrue())
	g.Expect(f.admin().Finalizers).To(ConsistOf(infrav1.TalosHostFinalizer))
	before := f.admin().ResourceVersion
	g.Expect(f.RenewAdmin(t.Context(), cluster, f.host)).To(Succeed())
	g.Expect(f.admin().ResourceVersion).To(Equal(before))
}
