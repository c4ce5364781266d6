package talosclient

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/siderolabs/talos/pkg/machinery/role"
)

// ClockLeeway is how far the clocks of a node and of the managers may differ: our
// client certificates are valid from that long ago, and a certificate of a node is
// taken that begins that far in the future, because Talos makes one at each boot
// that is valid from the node's own time on.
const ClockLeeway = 10 * time.Minute

// identity is what Credentials say, read.
type identity struct {
	// ca tells the CA from others, and roots are its certificates.
	ca    [sha256.Size]byte
	roots []*x509.Certificate
	// certificate is the client certificate, and notAfter when it expires.
	certificate tls.Certificate
	notAfter    time.Time
	// shares reports whether the connection may be one that somebody else has opened
	// with the same CA: both are readers.
	shares bool
}

// identify reads credentials. They share a connection only if the node would have
// accepted them as well: whoever knows the CA alone, which is no secret, must not
// speak through the connection of another one.
func identify(creds Credentials, now time.Time) (*identity, error) {
	id := &identity{ca: sha256.Sum256(creds.CA)}
	for rest := creds.CA; ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		root, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("reading the CA of the credentials: %w", err)
		}
		id.roots = append(id.roots, root)
	}
	if len(id.roots) == 0 {
		return nil, errors.New("the CA of the credentials is no PEM certificate")
	}
	var err error
	if id.certificate, err = tls.X509KeyPair(creds.Cert, creds.Key); err != nil {
		return nil, fmt.Errorf("reading the client certificate: %w", err)
	}
	leaf, err := x509.ParseCertificate(id.certificate.Certificate[0])
	if err != nil {
		return nil, fmt.Errorf("reading the client certificate: %w", err)
	}
	id.notAfter = leaf.NotAfter
	_, err = leaf.Verify(x509.VerifyOptions{Roots: id.pool(), CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	id.shares = err == nil && slices.Equal(leaf.Subject.Organization, []string{string(role.Reader)})
	return id, nil
}

func (i *identity) pool() *x509.CertPool {
	roots := x509.NewCertPool()
	for _, root := range i.roots {
		roots.AddCert(root)
	}
	return roots
}

// verifyServer takes a certificate that the CA has signed for a server, whatever
// names are in it: a node has its own addresses in it, and neither the DNS names
// nor the addresses before NAT by which it may be reached. A name would prove
// nothing: the CA is that of one cluster and signs nothing but its nodes, a client
// certificate of it is for no server, and trustd signs whatever names a node asks
// for (Talos, internal/app/trustd/internal/reg/reg.go). So any node of the cluster
// may answer; callers find out which one does: by SMBIOS and hardware addresses, by
// the host name, or by the ID of its etcd member.
func (i *identity) verifyServer(state tls.ConnectionState, now time.Time) error {
	if len(state.PeerCertificates) == 0 {
		return fmt.Errorf("%w: it presents no certificate", ErrUntrusted)
	}
	leaf := state.PeerCertificates[0]
	if begins := leaf.NotBefore; begins.After(now) && !begins.After(now.Add(ClockLeeway)) {
		now = begins
	}
	between := x509.NewCertPool()
	for _, certificate := range state.PeerCertificates[1:] {
		between.AddCert(certificate)
	}
	_, err := leaf.Verify(x509.VerifyOptions{
		Roots: i.pool(), Intermediates: between, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	})
	var invalid x509.CertificateInvalidError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired && i.hasSigned(leaf):
		return fmt.Errorf("%w: %w", ErrClock, err)
	}
	// The time of a certificate is judged first, also of a stranger's.
	return fmt.Errorf("%w: %w", ErrUntrusted, err)
}

func (i *identity) hasSigned(leaf *x509.Certificate) bool {
	return slices.ContainsFunc(i.roots, func(root *x509.Certificate) bool { return leaf.CheckSignatureFrom(root) == nil })
}

// expiredAlert is what a node says about a client certificate that is not valid
// yet, or not any more, by its own clock (crypto/tls, processCertsFromClient). It
// says it only to a client that has accepted its own certificate before.
const expiredAlert = "remote error: tls: expired certificate"

// secureError reads the reason out of the message: gRPC flattens handshake errors
// to text.
func secureError(err error, id *identity, now time.Time) error {
	message := err.Error()
	switch {
	case strings.Contains(message, ErrClock.Error()),
		strings.Contains(message, expiredAlert) && now.Before(id.notAfter):
		return fmt.Errorf("%w: %w", ErrClock, err)
	case strings.Contains(message, ErrUntrusted.Error()), strings.Contains(message, "remote error: tls:"):
		return fmt.Errorf("%w: %w", ErrUntrusted, err)
	}
	return err
}
