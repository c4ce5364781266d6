package main

import (
	"os"
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"
)

func TestOwnDomain(t *testing.T) {
	for sentence, tt := range map[string]struct{ file, domain string }{
		"is what Services are searched in":  {"nameserver 10.96.0.10\nsearch capt-infrastructure-system.svc.example.local svc.example.local example.local lab.example.com\noptions ndots:5\n", "example.local"},
		"has no dot at its end":             {"search a.svc.k8s.example.com. svc.k8s.example.com. k8s.example.com.\n", "k8s.example.com"},
		"is not known outside a cluster":    {"nameserver 192.0.2.53\nsearch lab.example.com\n", ""},
		"is not known where nothing is":     {"# nothing\n\nsearch\n", ""},
		"is that of the last search line":   {"search svc.old.example.com\nsearch svc.example.local\n", "example.local"},
		"is not that of a line that is old": {"search svc.old.example.com\nsearch lab.example.com\n", ""},
	} {
		t.Run(sentence, func(t *testing.T) {
			g := NewWithT(t)
			path := filepath.Join(t.TempDir(), "resolv.conf")
			g.Expect(os.WriteFile(path, []byte(tt.file), 0o600)).To(Succeed())
			g.Expect(ownDomain(path)).To(Equal(tt.domain))
		})
	}
	NewWithT(t).Expect(ownDomain(filepath.Join(t.TempDir(), "missing"))).To(BeEmpty())
}
