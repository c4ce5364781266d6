package secrets_test

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/secrets"
)

var now = time.Unix(1<<30, 0)

func TestBundleSurvivesItsSecret(t *testing.T) {
	g := NewWithT(t)
	made, err := secrets.NewBundle(now, "v1.13", nil)
	g.Expect(err).NotTo(HaveOccurred())
	stored := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: secrets.BundleName("demo")},
		Data:       map[string][]byte{secrets.BundleKey: made.YAML()},
	}
	reader := fake.NewClientBuilder().WithObjects(stored).Build()

	read, err := secrets.GetBundle(t.Context(), reader, client.ObjectKey{Namespace: "ns", Name: "demo"})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(read.Digest()).To(Equal(made.Digest()))

	other, err := secrets.NewBundle(now, "v1.13", nil)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(other.Digest()).NotTo(Equal(made.Digest()))

	_, err = secrets.GetBundle(t.Context(), reader, client.ObjectKey{Namespace: "ns", Name: "other"})
	g.Expect(err).To(MatchError(secrets.ErrBundleMissing))
	_, err = secrets.ParseBundle([]byte("Certs: {}"))
	g.Expect(err).To(MatchError(secrets.ErrBundleInvalid))
}

func TestBundleTakesTheCAOfTheUser(t *testing.T) {
	g := NewWithT(t)
	users, err := secrets.NewBundle(now, "v1.13", nil)
	g.Expect(err).NotTo(HaveOccurred())

	made, err := secrets.NewBundle(now, "v1.13", users.CASecretData())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(made.CASecretData()).To(Equal(users.CASecretData()))

	_, err = secrets.NewBundle(now, "v1.13", map[string][]byte{})
	g.Expect(err).To(MatchError(secrets.ErrBundleInvalid))
}

func TestTalosconfigCarriesCredentialsThere(t *testing.T) {
	g := NewWithT(t)
	bundle, err := secrets.NewBundle(now, "v1.13", nil)
	g.Expect(err).NotTo(HaveOccurred())
	creds, err := bundle.ClientCredentials(secrets.RoleAdmin, now, time.Hour)
	g.Expect(err).NotTo(HaveOccurred())

	raw, err := secrets.Talosconfig("demo", []string{"10.0.0.5"}, creds)
	g.Expect(err).NotTo(HaveOccurred())
	read, endpoints, err := secrets.ParseTalosconfig(raw)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(endpoints).To(Equal([]string{"10.0.0.5"}))
	g.Expect(read).To(Equal(creds))

	_, notAfter, err := secrets.Validity(read)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(notAfter).To(BeTemporally("~", now.Add(time.Hour), time.Minute))
	_, err = bundle.ClientCredentials("os:everything", now, time.Hour)
	g.Expect(err).To(HaveOccurred())
	_, _, err = secrets.ParseTalosconfig([]byte("context: x"))
	g.Expect(err).To(HaveOccurred())
}
