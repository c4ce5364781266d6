package setup

import (
	"testing"

	. "github.com/onsi/gomega"
)

func TestBadInputImageFactory(t *testing.T) {
	g := NewWithT(t)
	for _, fine := range []string{"", "factory.talos.dev", "factory.example.com:8443", "[2001:db8::1]:5000"} {
		g.Expect(checkFactory(fine)).To(Succeed(), fine)
	}
	for _, bad := range []string{"https://factory.talos.dev", "factory.talos.dev/", "factory.talos.dev/metal-installer", ":5000", "user@factory", "two words"} {
		g.Expect(checkFactory(bad)).To(MatchError(ContainSubstring("must be a host with an optional port")), bad)
	}
}
