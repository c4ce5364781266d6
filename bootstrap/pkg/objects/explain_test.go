package objects

import (
	"errors"
	"fmt"
	"testing"

	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// webhook is the answer of an API server to which a webhook does not answer.
func webhook(why string) error {
	return fmt.Errorf("creating Secret s: %w", apierrors.NewInternalError(fmt.Errorf("failed calling webhook %q: failed to call webhook: Post %q: %s",
		"policy.example.com", "https://policy.example.svc:443/check?timeout=10s", why)))
}

// TestExplain: a message that changes from reconcile to reconcile starts one after the other.
func TestExplain(t *testing.T) {
	const called = `creating Secret s: Internal error occurred: failed calling webhook "policy.example.com": failed to call webhook: Post "https://policy.example.svc:443/check?timeout=10s": `
	secrets := schema.GroupResource{Resource: "secrets"}
	for name, tc := range map[string]struct {
		err  error
		want string
	}{
		"a quota": {
			apierrors.NewForbidden(secrets, "s", errors.New("exceeded quota: secrets")),
			`It fails. The API server says: secrets "s" is forbidden: exceeded quota: secrets`,
		},
		"a webhook that is not there": {
			webhook("dial tcp 10.96.1.2:443: connect: connection refused"),
			"It fails. The API server says: " + called + "dial tcp 10.96.1.2:443: connect: connection refused",
		},
		"a webhook that ends connections": {
			webhook("read tcp 10.0.0.9:41234->10.96.1.2:443: read: connection reset by peer"),
			"It fails. The API server says: " + called + "read tcp 10.96.1.2:443: read: connection reset by peer",
		},
		"a webhook that ends connections, by IPv6": {
			webhook("read tcp [fd00::9]:41234->[fd00::2]:443: read: connection reset by peer"),
			"It fails. The API server says: " + called + "read tcp [fd00::2]:443: read: connection reset by peer",
		},
		"a webhook whose certificate has expired": {
			webhook("tls: failed to verify certificate: x509: certificate has expired or is not yet valid: current time 2026-06-01T12:00:00Z is after 2026-05-01T12:00:00Z"),
			"It fails. The API server says: " + called + "tls: failed to verify certificate: x509: certificate has expired or is not yet valid: the current time is after 2026-05-01T12:00:00Z",
		},
		"an object that somebody has changed": {
			apierrors.NewConflict(secrets, "s", errors.New("it was changed")), "It fails, see the log of the manager",
		},
		"an API server that does not answer": {
			errors.New("read tcp 10.0.0.9:41234->10.0.0.1:6443: connection reset by peer"), "It fails, see the log of the manager",
		},
	} {
		t.Run(name, func(t *testing.T) {
			NewWithT(t).Expect(Explain("It fails", tc.err)).To(Equal(tc.want))
		})
	}
}

// TestWordsAreOneLine: policies deny in several.
func TestWordsAreOneLine(t *testing.T) {
	denied := errors.New("admission webhook denied the request: \n\nresource x was blocked\n  policy: one")
	NewWithT(t).Expect(Words(denied)).To(Equal("admission webhook denied the request: resource x was blocked policy: one"))
}

// TestWithoutWords: by what is left, a refusal in other words is the same.
func TestWithoutWords(t *testing.T) {
	for name, tc := range map[string]struct{ message, want string }{
		"nothing":                {"", ""},
		"no words":               {"It fails, see the log of the manager", "It fails, see the log of the manager"},
		"words":                  {Explain("It fails", webhook("EOF")), "It fails."},
		"words alone":            {Says + "exceeded quota", ""},
		"words of several":       {"They fail. " + Says + "Cluster a: one; Cluster b: " + Says + "other", "They fail."},
		"words in several lines": {"* a fails. " + Says + "one\n* b waits", "* a fails.\n* b waits"},
		"spaces of the message":  {"  two  spaces ", "  two  spaces "},
	} {
		t.Run(name, func(t *testing.T) {
			NewWithT(t).Expect(WithoutWords(tc.message)).To(Equal(tc.want))
		})
	}
}
