package secrets_test

import (
	"errors"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/configgen"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/secrets"
)

// FuzzBundle reads arbitrary content of a <cluster>-talos Secret, and uses what
// is taken for a bundle as the providers do.
func FuzzBundle(f *testing.F) {
	made, err := secrets.NewBundle(now, "v1.13", nil)
	if err != nil {
		f.Fatal(err)
	}
	configuration, err := configgen.Render(inputOf(made))
	if err != nil {
		f.Fatal(err)
	}
	for _, seed := range [][]byte{
		made.YAML(), nil, []byte("certs: {}"), []byte("cluster: null\ncerts: {os: null}\n"), []byte("[]"), []byte("certs: {os: {crt: '', key: ''}}"),
		[]byte("cluster: &a {id: *a}\n"), []byte("certs:\n  os: {crt: LS0t, key: LS0t}\n  k8s: {crt: LS0t, key: LS0t}\n"), configuration,
	} {
		f.Add("bundle", seed)
	}
	f.Add("other", []byte("a"))
	f.Fuzz(func(t *testing.T, key string, raw []byte) {
		stored := &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: secrets.BundleName("demo")}, Data: map[string][]byte{key: raw},
		}
		reader := fake.NewClientBuilder().WithObjects(stored).Build()
		bundle, err := secrets.GetBundle(t.Context(), reader, client.ObjectKey{Namespace: "ns", Name: "demo"})
		if err != nil {
			if !errors.Is(err, secrets.ErrBundleInvalid) {
				t.Fatalf("error of another type: %v", err)
			}
		} else {
			use(bundle)
		}
		if its, err := secrets.BundleOf(raw); err == nil {
			use(its)
		}
		_, _ = made.Made(raw)
	})
}

// use does with a bundle what the providers do.
func use(bundle *secrets.Bundle) {
	_ = bundle.Digest()
	_ = bundle.CASecretData()
	_ = bundle.TalosCA()
	if credentials, err := bundle.ClientCredentials(secrets.RoleAdmin, now, time.Hour); err == nil {
		_, _, _ = secrets.Validity(credentials)
		if talosconfig, err := secrets.Talosconfig("demo", []string{"10.0.0.5"}, credentials); err == nil {
			_, _, _ = secrets.ParseTalosconfig(talosconfig)
		}
	}
	in := inputOf(bundle)
	_, _ = configgen.Render(in)
	in.Role, in.Hostname = configgen.RoleWorker, ""
	_, _ = configgen.Render(in)
}

func inputOf(bundle *secrets.Bundle) configgen.Input {
	return configgen.Input{
		Role: configgen.RoleControlPlane, Contract: "v1.14", ClusterName: "demo", Endpoint: "https://10.0.0.1:6443", KubernetesVersion: "v1.36.3",
		Secrets: bundle.Machinery(), Hostname: "demo-abcde",
	}
}
