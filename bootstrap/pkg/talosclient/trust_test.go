package talosclient_test

import (
	stdx509 "crypto/x509"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/types"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/secrets"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
)

// TestClocksMayDiffer: the certificates of both ends are brand-new, and so is the CA,
// as while a cluster is made.
func TestClocksMayDiffer(t *testing.T) {
	const here = "127.83.18.7"
	for name, c := range map[string]struct {
		offset time.Duration
		want   types.GomegaMatcher
	}{
		"not at all":                   {0, Succeed()},
		"the node lags by 5 minutes":   {-5 * time.Minute, Succeed()},
		"the node leads by 5 minutes":  {5 * time.Minute, Succeed()},
		"the node lags by 10 minutes":  {-10 * time.Minute, Succeed()},
		"the node leads by 10 minutes": {10 * time.Minute, Succeed()},
		"the node lags by 30 minutes":  {-30 * time.Minute, And(MatchError(talosclient.ErrClock), Not(MatchError(talosclient.ErrUntrusted)))},
		"the node leads by 30 minutes": {30 * time.Minute, And(MatchError(talosclient.ErrClock), Not(MatchError(talosclient.ErrUntrusted)))},
		"the node leads by two hours":  {2 * time.Hour, MatchError(talosclient.ErrClock)},
	} {
		for _, role := range []string{secrets.RoleReader, secrets.RoleAdmin} {
			t.Run(name+" as "+role, func(t *testing.T) {
				g := NewWithT(t)
				now, bundle := epoch, ours()
				start(t, nodeSpec{address: here, bundle: bundle, clock: clocktesting.NewFakeClock(now.Add(c.offset))})
				pool, _ := counted(t, clocktesting.NewFakeClock(now))
				g.Expect(ask(t, pool, here, credentialsOf(t, bundle, role, now))).To(c.want)
			})
		}
	}
}

// ask says what has become of a call.
func ask(t *testing.T, pool *talosclient.Pool, address string, creds talosclient.Credentials) error {
	t.Helper()
	node, err := pool.Secure(t.Context(), address, creds)
	if err != nil {
		return err
	}
	return node.Close()
}

func TestWhoMayAnswerAsANode(t *testing.T) {
	const here = "127.83.18.8"
	now := epoch
	for name, c := range map[string]struct {
		node  nodeSpec
		later time.Duration
		want  types.GomegaMatcher
	}{
		"a node that has other names":        {node: nodeSpec{bundle: ours(), names: []string{"node-7"}}, want: Succeed()},
		"a node of another cluster":          {node: nodeSpec{bundle: theirs()}, want: MatchError(talosclient.ErrUntrusted)},
		"one of another cluster, long since": {node: nodeSpec{bundle: theirs()}, later: 48 * time.Hour, want: And(MatchError(talosclient.ErrUntrusted), Not(MatchError(talosclient.ErrClock)))},
		"a client of the cluster":            {node: nodeSpec{bundle: ours(), usage: stdx509.ExtKeyUsageClientAuth}, want: MatchError(talosclient.ErrUntrusted)},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			c.node.address, c.node.clock = here, clocktesting.NewFakeClock(now)
			start(t, c.node)
			pool, _ := counted(t, clocktesting.NewFakeClock(now.Add(c.later)))
			g.Expect(ask(t, pool, here, credentialsOf(t, ours(), secrets.RoleReader, now.Add(c.later)))).To(c.want)
		})
	}
}

// TestAnExpiredCertificateOfOursIsNotTheClock: it is told as what it is, so that
// nobody sets a clock that is right.
func TestAnExpiredCertificateOfOursIsNotTheClock(t *testing.T) {
	g := NewWithT(t)
	const here = "127.83.18.9"
	now, bundle := epoch, ours()
	start(t, nodeSpec{address: here, bundle: bundle, clock: clocktesting.NewFakeClock(now)})
	pool, _ := counted(t, clocktesting.NewFakeClock(now))
	err := ask(t, pool, here, credentialsOf(t, bundle, secrets.RoleAdmin, now.Add(-2*time.Hour)))
	g.Expect(err).To(And(MatchError(talosclient.ErrUntrusted), Not(MatchError(talosclient.ErrClock))))
}
