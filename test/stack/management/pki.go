package management

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// validity is how long the certificates of a stack hold; a kept stack may be
// looked at for days.
const validity = 30 * 24 * time.Hour

// serialBits is the size of the random serial numbers of certificates.
const serialBits = 127

// authority signs the certificates of one stack.
type authority struct {
	certificate *x509.Certificate
	key         crypto.Signer
	pem         []byte
	now         time.Time
}

// pair is a certificate with its key, both PEM.
type pair struct {
	certificate, key []byte
}

func newAuthority(name string, now time.Time) (*authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("making the key of %s: %w", name, err)
	}
	template, err := template(name, now)
	if err != nil {
		return nil, err
	}
	template.IsCA, template.BasicConstraintsValid = true, true
	template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageCRLSign | x509.KeyUsageDigitalSignature
	raw, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("signing the certificate of %s: %w", name, err)
	}
	certificate, err := x509.ParseCertificate(raw)
	if err != nil {
		return nil, fmt.Errorf("reading the certificate of %s: %w", name, err)
	}
	return &authority{certificate: certificate, key: key, pem: encode("CERTIFICATE", raw), now: now}, nil
}

func template(name string, now time.Time) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), serialBits))
	if err != nil {
		return nil, fmt.Errorf("making a serial number: %w", err)
	}
	return &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: name},
		NotBefore:    now.Add(-time.Hour),
		NotAfter:     now.Add(validity),
	}, nil
}

// server issues a certificate for the names and for this machine's loopback
// address.
func (a *authority) server(name string, names ...string) (pair, error) {
	return a.issue(name, nil, append(names, "localhost"), x509.ExtKeyUsageServerAuth)
}

// client issues a certificate for a user of the API server.
func (a *authority) client(user string, groups ...string) (pair, error) {
	return a.issue(user, groups, nil, x509.ExtKeyUsageClientAuth)
}

func (a *authority) issue(name string, groups, names []string, usage x509.ExtKeyUsage) (pair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return pair{}, fmt.Errorf("making the key of %s: %w", name, err)
	}
	template, err := template(name, a.now)
	if err != nil {
		return pair{}, err
	}
	template.Subject.Organization = groups
	template.KeyUsage = x509.KeyUsageDigitalSignature
	template.ExtKeyUsage = []x509.ExtKeyUsage{usage}
	if usage == x509.ExtKeyUsageServerAuth {
		template.DNSNames = names
		template.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback}
	}
	raw, err := x509.CreateCertificate(rand.Reader, template, a.certificate, key.Public(), a.key)
	if err != nil {
		return pair{}, fmt.Errorf("signing the certificate of %s: %w", name, err)
	}
	keyPEM, err := encodeKey(key)
	if err != nil {
		return pair{}, err
	}
	return pair{certificate: encode("CERTIFICATE", raw), key: keyPEM}, nil
}

// tokenKeys makes the keys for service account tokens: private, public.
func tokenKeys() (private, public []byte, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("making the key for tokens: %w", err)
	}
	if private, err = encodeKey(key); err != nil {
		return nil, nil, err
	}
	raw, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return nil, nil, fmt.Errorf("encoding the key for tokens: %w", err)
	}
	return private, encode("PUBLIC KEY", raw), nil
}

func encodeKey(key *ecdsa.PrivateKey) ([]byte, error) {
	raw, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encoding a key: %w", err)
	}
	return encode("EC PRIVATE KEY", raw), nil
}

func encode(kind string, raw []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: raw})
}

// write puts files, by name, into a folder that only the owner can read.
func write(folder string, files map[string][]byte) error {
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return fmt.Errorf("making a folder for files of the stack: %w", err)
	}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(folder, name), content, 0o600); err != nil {
			return fmt.Errorf("writing a file of the stack: %w", err)
		}
	}
	return nil
}
