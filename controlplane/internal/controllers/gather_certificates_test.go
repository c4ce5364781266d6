package controllers

import (
	"bytes"
	"sync"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/secrets"
)

// testBundle is one secrets bundle for all tests, because making one is slow.
var testBundle = sync.OnceValues(func() (*secrets.Bundle, error) {
	return secrets.NewBundle(testTime, "v1.13", nil)
})

// testSecrets are the Secrets of the cluster by name, as the bootstrap provider
// would make them.
func testSecrets(t *testing.T) map[string]map[string][]byte {
	t.Helper()
	bundle, err := testBundle()
	NewWithT(t).Expect(err).NotTo(HaveOccurred())

	return map[string]map[string][]byte{
		secrets.BundleName(testCluster): {secrets.BundleKey: bundle.YAML()},
		secrets.CAName(testCluster):     bundle.CASecretData(),
	}
}

// otherBundle puts the bundle of another cluster into the Secret of the bundle.
func otherBundle(t *testing.T, secret *corev1.Secret) {
	t.Helper()
	g := NewWithT(t)
	bundle, err := testBundle()
	g.Expect(err).NotTo(HaveOccurred())
	id := []byte(bundle.Machinery().Cluster.ID)
	other := append([]byte("AAAA"), id[4:]...)
	secret.Data[secrets.BundleKey] = bytes.ReplaceAll(secret.Data[secrets.BundleKey], id, other)
}
