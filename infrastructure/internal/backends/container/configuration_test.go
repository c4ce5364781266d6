package container

import (
	"encoding/base64"
	"math/rand/v2"
	"net/http"
	"testing"

	. "github.com/onsi/gomega"
)

// TestUserDataIsKnownAsGzipped: Talos asks http.DetectContentType, which takes what has "LP" as
// its bytes 34 and 35 for a font. What does not compress lies in the user data as it is.
func TestUserDataIsKnownAsGzipped(t *testing.T) {
	g := NewWithT(t)
	configuration := make([]byte, 1000)
	_, _ = rand.NewChaCha8([32]byte{}).Read(configuration)
	for offset := range 40 {
		unlucky := append([]byte(nil), configuration...)
		copy(unlucky[offset:], "LP")
		zipped, err := base64.StdEncoding.DecodeString(string(userDataOf(unlucky)))
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(http.DetectContentType(zipped)).To(Equal("application/x-gzip"), "%q at %d", "LP", offset)
	}
}
