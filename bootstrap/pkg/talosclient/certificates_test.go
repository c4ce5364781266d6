package talosclient

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"slices"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	clocktesting "k8s.io/utils/clock/testing"
)

var madeAt = time.Unix(1<<30, 0)

// signer is a certificate and its key.
type signer struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// sign makes a certificate out of a template; by itself where by is nil.
func sign(t *testing.T, template *x509.Certificate, by *signer) *signer {
	t.Helper()
	g := NewWithT(t)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	g.Expect(err).NotTo(HaveOccurred())
	template.SerialNumber, template.NotBefore, template.NotAfter = big.NewInt(1), madeAt, madeAt.Add(time.Hour)
	template.BasicConstraintsValid = true
	made := &signer{key: key}
	if by == nil {
		by = &signer{cert: template, key: key}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, by.cert, key.Public(), by.key)
	g.Expect(err).NotTo(HaveOccurred())
	made.cert, err = x509.ParseCertificate(der)
	g.Expect(err).NotTo(HaveOccurred())

	return made
}

func newCA(t *testing.T, name string, by *signer) *signer {
	t.Helper()
	return sign(t, &x509.Certificate{Subject: pkix.Name{CommonName: name}, IsCA: true, KeyUsage: x509.KeyUsageCertSign}, by)
}

func newLeaf(t *testing.T, by *signer, usage x509.ExtKeyUsage, organization ...string) *signer {
	t.Helper()
	return sign(t, &x509.Certificate{Subject: pkix.Name{Organization: organization}, ExtKeyUsage: []x509.ExtKeyUsage{usage}}, by)
}

func (s *signer) certPEM() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.cert.Raw})
}

func (s *signer) credentials(t *testing.T, cas ...*signer) Credentials {
	t.Helper()
	der, err := x509.MarshalECPrivateKey(s.key)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	creds := Credentials{Cert: s.certPEM(), Key: pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der})}
	for _, ca := range cas {
		creds.CA = append(creds.CA, ca.certPEM()...)
	}

	return creds
}

// TestCredentialsThatCannotBeRead are an error, and never an identity without a CA.
func TestCredentialsThatCannotBeRead(t *testing.T) {
	t.Parallel()
	ca := newCA(t, "ca", nil)
	whole := newLeaf(t, ca, x509.ExtKeyUsageClientAuth, "os:reader").credentials(t, ca)
	other := newLeaf(t, ca, x509.ExtKeyUsageClientAuth, "os:reader").credentials(t, ca)
	for name, spoil := range map[string]func(*Credentials){
		"no CA":            func(c *Credentials) { c.CA = nil },
		"a CA that is not": func(c *Credentials) { c.CA = []byte("x") },
		"a CA that is broken": func(c *Credentials) {
			c.CA = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte("x")})
		},
		"a second CA that is broken": func(c *Credentials) {
			c.CA = slices.Concat(c.CA, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte("x")}))
		},
		"no certificate":            func(c *Credentials) { c.Cert = nil },
		"the key of another one":    func(c *Credentials) { c.Key = other.Key },
		"a certificate that is not": func(c *Credentials) { c.Cert = c.Key },
	} {
		creds := whole
		spoil(&creds)
		id, err := identify(creds, madeAt)
		NewWithT(t).Expect(err).To(HaveOccurred(), name)
		NewWithT(t).Expect(id).To(BeNil(), name)
		node, err := New().Secure(t.Context(), "127.0.0.1", creds)
		NewWithT(t).Expect(err).To(MatchError(Or(ContainSubstring("the CA of the credentials"), ContainSubstring("the client certificate"))), name)
		NewWithT(t).Expect(node).To(BeNil(), name)
	}
}

// TestWhoSharesAConnection: readers whom the node would have let in itself.
func TestWhoSharesAConnection(t *testing.T) {
	t.Parallel()
	ca, other := newCA(t, "ca", nil), newCA(t, "other", nil)
	reader := newLeaf(t, ca, x509.ExtKeyUsageClientAuth, "os:reader")
	for name, tt := range map[string]struct {
		creds Credentials
		at    time.Time
		want  bool
	}{
		"a reader":                         {reader.credentials(t, ca), madeAt, true},
		"a reader of one of two CAs":       {reader.credentials(t, other, ca), madeAt, true},
		"an administrator":                 {newLeaf(t, ca, x509.ExtKeyUsageClientAuth, "os:admin").credentials(t, ca), madeAt, false},
		"a reader who is more":             {newLeaf(t, ca, x509.ExtKeyUsageClientAuth, "os:reader", "os:admin").credentials(t, ca), madeAt, false},
		"one without a role":               {newLeaf(t, ca, x509.ExtKeyUsageClientAuth).credentials(t, ca), madeAt, false},
		"a server":                         {newLeaf(t, ca, x509.ExtKeyUsageServerAuth, "os:reader").credentials(t, ca), madeAt, false},
		"a reader whom another CA made":    {reader.credentials(t, other), madeAt, false},
		"a reader whose time is over":      {reader.credentials(t, ca), madeAt.Add(2 * time.Hour), false},
		"a reader whose time is yet to be": {reader.credentials(t, ca), madeAt.Add(-time.Second), false},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			id, err := identify(tt.creds, tt.at)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(id.shares).To(Equal(tt.want))
			g.Expect(id.notAfter).To(BeTemporally("==", madeAt.Add(time.Hour)))
		})
	}
}

// TestWhoIsTakenForANode of the cluster: a server whose chain ends at its CA.
func TestWhoIsTakenForANode(t *testing.T) {
	t.Parallel()
	ca := newCA(t, "ca", nil)
	between := newCA(t, "between", ca)
	direct, indirect := newLeaf(t, ca, x509.ExtKeyUsageServerAuth), newLeaf(t, between, x509.ExtKeyUsageServerAuth)
	id, err := identify(newLeaf(t, ca, x509.ExtKeyUsageClientAuth, "os:reader").credentials(t, ca), madeAt)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	for name, tt := range map[string]struct {
		chain []*signer
		at    time.Time
		want  error
	}{
		"a node":                           {[]*signer{direct}, madeAt, nil},
		"a node with its CA":               {[]*signer{direct, ca}, madeAt, nil},
		"a node of a CA below":             {[]*signer{indirect, between}, madeAt, nil},
		"one of a CA below, without it":    {[]*signer{indirect}, madeAt, ErrUntrusted},
		"nobody":                           {nil, madeAt, ErrUntrusted},
		"a client":                         {[]*signer{newLeaf(t, ca, x509.ExtKeyUsageClientAuth)}, madeAt, ErrUntrusted},
		"one that makes itself":            {[]*signer{newCA(t, "ca", nil)}, madeAt, ErrUntrusted},
		"a node that leads by ten minutes": {[]*signer{direct}, madeAt.Add(-10 * time.Minute), nil},
		"a node that leads by more":        {[]*signer{direct}, madeAt.Add(-10*time.Minute - time.Second), ErrClock},
		"a node whose time is over":        {[]*signer{direct}, madeAt.Add(time.Hour + time.Second), ErrClock},
	} {
		t.Run(name, func(t *testing.T) {
			state := tls.ConnectionState{}
			for _, s := range tt.chain {
				state.PeerCertificates = append(state.PeerCertificates, s.cert)
			}
			if tt.want == nil {
				NewWithT(t).Expect(id.verifyServer(state, tt.at)).To(Succeed())
				return
			}
			NewWithT(t).Expect(id.verifyServer(state, tt.at)).To(MatchError(tt.want))
		})
	}
}

// TestAMaintenanceConnectionStaysWithItsMachine: another certificate is another boot, or
// another machine.
func TestAMaintenanceConnectionStaysWithItsMachine(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	state := func(by *signer) tls.ConnectionState {
		return tls.ConnectionState{PeerCertificates: []*x509.Certificate{by.cert}}
	}
	first, second := state(newCA(t, "first", nil)), state(newCA(t, "second", nil))
	anybody := &anonymousVerifier{}
	g.Expect(anybody.verify(first)).To(Succeed())
	g.Expect(anybody.pin.get()).To(Equal(fingerprintOf(first)))
	g.Expect(anybody.verify(second)).To(MatchError(errOtherCertificate))
	g.Expect(anybody.verify(first)).To(Succeed(), "the one that was met is the one")

	demanding := &anonymousVerifier{want: fingerprintOf(second)}
	g.Expect(demanding.verify(first)).To(MatchError(ErrFingerprintMismatch))
	g.Expect(demanding.verify(second)).To(Succeed())
	g.Expect(demanding.verify(tls.ConnectionState{})).To(MatchError(ErrFingerprintMismatch), "it presents nothing")
}

// TestARetiredConnectionEndsWithItsLastUser, and is lent to nobody else meanwhile.
func TestARetiredConnectionEndsWithItsLastUser(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	ca := newCA(t, "ca", nil)
	pool := New(WithClock(clocktesting.NewFakeClock(madeAt)))
	t.Cleanup(pool.Close)
	id, err := identify(newLeaf(t, ca, x509.ExtKeyUsageClientAuth, "os:reader").credentials(t, ca), madeAt)
	g.Expect(err).NotTo(HaveOccurred())
	lend := func() *conn {
		c, err := pool.lease("127.0.0.1", id)
		g.Expect(err).NotTo(HaveOccurred())

		return c
	}
	c := lend()
	g.Expect(lend()).To(BeIdenticalTo(c), "readers share it")
	pool.retire(c)
	g.Expect(lend()).NotTo(BeIdenticalTo(c))
	pool.giveBack(c)
	isOpen := func() bool { _, open := pool.opened[c]; return open }
	g.Expect(isOpen()).To(BeTrue(), "somebody uses it still")
	pool.giveBack(c)
	g.Expect(isOpen()).To(BeFalse())
	g.Expect(pool.opened).To(HaveLen(1))
}
