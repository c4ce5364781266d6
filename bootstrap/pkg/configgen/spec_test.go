package configgen_test

import (
	"testing"

	. "github.com/onsi/gomega"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/configgen"
)

// TestAdmissionMakesNoRSAKey: it takes seconds, and an API server does not wait for long.
func TestAdmissionMakesNoRSAKey(t *testing.T) {
	t.Parallel()
	for _, contract := range configgen.Contracts() {
		g := NewWithT(t)
		made, err := configgen.TrialSecrets(contract)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(string(made.Certs.K8sServiceAccount.Key)).To(HavePrefix("-----BEGIN EC PRIVATE KEY-----"), contract)
	}
}
