package secrets

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/cluster-api/util/certs"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
)

// ClientConfigLife is how long the client certificates in the kubeconfig and
// in the talosconfig of a cluster are valid at most: they never outlive the CA
// that has signed them. They are renewed when half of it is left.
const ClientConfigLife = 365 * 24 * time.Hour

// The administrator of Kubernetes, as Cluster API names it.
const (
	kubernetesAdminName  = "kubernetes-admin"
	kubernetesAdminGroup = "system:masters"
)

// errInvalidPEM replaces errors of parsers, which may quote what they read.
var errInvalidPEM = errors.New("it is not valid PEM")

// ClientConfig is what a Secret with a client configuration is to hold.
type ClientConfig struct {
	// Content is the client configuration: byte for byte the stored one where
	// that is current.
	Content []byte
	// NotAfter is when its certificate expires.
	NotAfter time.Time
	// RenewAt is when the certificate is to be renewed; zero when it lives as
	// long as its CA.
	RenewAt time.Time
	// Renewed reports whether the certificate is a new one.
	Renewed bool
}

// EnsureTalosconfig is the administrator's client configuration of the Talos
// API for endpoints, made from the stored one, which may be nil. The stored
// certificate is kept, unless it is not of this bundle, is due at now, or is to
// be renewed anyway.
func (b *Bundle) EnsureTalosconfig(cluster string, endpoints []string, stored []byte, now time.Time, renew bool) (ClientConfig, error) {
	ca, err := parseCertificate(b.parsed.Certs.OS.Crt)
	if err != nil {
		return ClientConfig{}, fmt.Errorf("reading the CA of the Talos API: %w", err)
	}
	credentials, present, err := ParseTalosconfig(stored)
	if err == nil && bytes.Equal(credentials.CA, b.TalosCA()) && !renew {
		if cert := currentCertificate(credentials, ca, now); cert != nil {
			result := ClientConfig{Content: stored, NotAfter: cert.NotAfter, RenewAt: renewAt(cert, ca)}
			if !slices.Equal(present, endpoints) {
				result.Content, err = Talosconfig(cluster, endpoints, credentials)
			}
			return result, err
		}
	}

	if credentials, err = b.ClientCredentials(RoleAdmin, now, expiry(ca, now).Sub(now)); err != nil {
		return ClientConfig{}, err
	}
	cert, err := parseCertificate(credentials.Cert)
	if err != nil {
		return ClientConfig{}, fmt.Errorf("reading the new client certificate: %w", err)
	}
	content, err := Talosconfig(cluster, endpoints, credentials)

	return ClientConfig{Content: content, NotAfter: cert.NotAfter, RenewAt: renewAt(cert, ca), Renewed: true}, err
}

// EnsureKubeconfig is the administrator's kubeconfig for server, made from the
// stored one, which may be nil. The stored certificate is kept, unless it is
// not of this bundle, is due at now, or is to be renewed anyway.
func (b *Bundle) EnsureKubeconfig(cluster, server string, stored []byte, now time.Time, renew bool) (ClientConfig, error) {
	ca, err := parseCertificate(b.parsed.Certs.K8s.Crt)
	if err != nil {
		return ClientConfig{}, fmt.Errorf("reading the Kubernetes CA: %w", err)
	}
	if found, err := readKubeconfig(stored); err == nil && !renew {
		if cert := currentCertificate(found.credentials, ca, now); cert != nil {
			result := ClientConfig{Content: stored, NotAfter: cert.NotAfter, RenewAt: renewAt(cert, ca)}
			if found.server != server || !isCertificate(found.credentials.CA, ca) {
				result.Content, err = kubeconfig(cluster, server, b.withKubernetesCA(found.credentials))
			}
			return result, err
		}
	}

	credentials, cert, err := b.kubernetesCredentials(ca, expiry(ca, now))
	if err != nil {
		return ClientConfig{}, err
	}
	content, err := kubeconfig(cluster, server, credentials)

	return ClientConfig{Content: content, NotAfter: cert.NotAfter, RenewAt: renewAt(cert, ca), Renewed: true}, err
}

// currentCertificate is the certificate of credentials; nil when it is to be
// renewed: it is of no use, not valid yet, or it has no more than half of a life
// left and one of the same CA could live longer.
func currentCertificate(credentials talosclient.Credentials, ca *x509.Certificate, now time.Time) *x509.Certificate {
	cert, err := parseCertificate(credentials.Cert)
	if err != nil || cert.CheckSignatureFrom(ca) != nil {
		return nil
	}
	if _, err := tls.X509KeyPair(credentials.Cert, credentials.Key); err != nil {
		return nil
	}
	if due := renewAt(cert, ca); isPremature(cert, ca, now) || !due.IsZero() && !now.Before(due) {
		return nil
	}

	return cert
}

// isPremature reports whether a certificate is not valid yet, and another one would be: it was
// made while the clock was ahead.
func isPremature(cert, ca *x509.Certificate, now time.Time) bool {
	return cert.NotBefore.After(now) && cert.NotBefore.After(ca.NotBefore)
}

// renewAt is when a certificate is to be renewed; zero when no other could live
// longer.
func renewAt(cert, ca *x509.Certificate) time.Time {
	if !cert.NotAfter.Before(ca.NotAfter) {
		return time.Time{}
	}

	return cert.NotAfter.Add(-ClientConfigLife / 2)
}

// expiry is when a certificate that is made at now expires.
func expiry(ca *x509.Certificate, now time.Time) time.Time {
	if until := now.Add(ClientConfigLife); until.Before(ca.NotAfter) {
		return until
	}

	return ca.NotAfter
}

// kubernetesCredentials makes a client certificate of the administrator of
// Kubernetes. Its life begins with that of its CA, so that no clock that lags
// behind refuses it.
func (b *Bundle) kubernetesCredentials(ca *x509.Certificate, notAfter time.Time) (talosclient.Credentials, *x509.Certificate, error) {
	signer, err := certs.DecodePrivateKeyPEM(b.parsed.Certs.K8s.Key)
	if err != nil || signer == nil {
		return talosclient.Credentials{}, nil, fmt.Errorf("reading the key of the Kubernetes CA: %w", errInvalidPEM)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return talosclient.Credentials{}, nil, fmt.Errorf("making the key of the kubeconfig: %w", err)
	}
	const serialBits = 127
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), serialBits))
	if err != nil {
		return talosclient.Credentials{}, nil, fmt.Errorf("making a serial number: %w", err)
	}
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: kubernetesAdminName, Organization: []string{kubernetesAdminGroup}},
		NotBefore:    ca.NotBefore,
		NotAfter:     notAfter,
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}, ca, key.Public(), signer)
	if err != nil {
		return talosclient.Credentials{}, nil, fmt.Errorf("making the certificate of the kubeconfig: %w", err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return talosclient.Credentials{}, nil, fmt.Errorf("reading the certificate of the kubeconfig: %w", err)
	}
	keyDER, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return talosclient.Credentials{}, nil, fmt.Errorf("encoding the key of the kubeconfig: %w", err)
	}

	return b.withKubernetesCA(talosclient.Credentials{
		Cert: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		Key:  pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: keyDER}),
	}), cert, nil
}

func (b *Bundle) withKubernetesCA(credentials talosclient.Credentials) talosclient.Credentials {
	credentials.CA = b.parsed.Certs.K8s.Crt

	return credentials
}

// kubeconfig has one context, named as Cluster API does.
func kubeconfig(cluster, server string, credentials talosclient.Credentials) ([]byte, error) {
	user := cluster + "-admin"
	name := user + "@" + cluster
	content, err := clientcmd.Write(clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{cluster: {Server: server, CertificateAuthorityData: credentials.CA}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{user: {ClientCertificateData: credentials.Cert, ClientKeyData: credentials.Key}},
		Contexts:       map[string]*clientcmdapi.Context{name: {Cluster: cluster, AuthInfo: user}},
		CurrentContext: name,
	})
	if err != nil {
		return nil, errors.New("encoding the kubeconfig")
	}

	return content, nil
}

// kubeconfigContent is what is read of a kubeconfig.
type kubeconfigContent struct {
	server      string
	credentials talosclient.Credentials
}

// readKubeconfig reads the current context of a kubeconfig. Its errors never
// repeat content.
func readKubeconfig(raw []byte) (kubeconfigContent, error) {
	config, err := clientcmd.Load(raw)
	if err != nil {
		return kubeconfigContent{}, errors.New("reading the kubeconfig: it is none")
	}
	current, found := config.Contexts[config.CurrentContext]
	if !found {
		return kubeconfigContent{}, errors.New("reading the kubeconfig: its current context is missing")
	}
	cluster, user := config.Clusters[current.Cluster], config.AuthInfos[current.AuthInfo]
	if cluster == nil || user == nil || len(user.ClientCertificateData) == 0 || len(user.ClientKeyData) == 0 {
		return kubeconfigContent{}, errors.New("reading the kubeconfig: it has no client certificate")
	}

	return kubeconfigContent{server: cluster.Server, credentials: talosclient.Credentials{
		CA: cluster.CertificateAuthorityData, Cert: user.ClientCertificateData, Key: user.ClientKeyData,
	}}, nil
}

// KubeconfigExpiry is when the client certificate of a kubeconfig expires. Its
// errors never repeat content.
func KubeconfigExpiry(raw []byte) (time.Time, error) {
	found, err := readKubeconfig(raw)
	if err != nil {
		return time.Time{}, err
	}
	cert, err := parseCertificate(found.credentials.Cert)
	if err != nil {
		return time.Time{}, fmt.Errorf("reading the client certificate of the kubeconfig: %w", err)
	}

	return cert.NotAfter, nil
}

// TalosconfigExpiry is when the client certificate of a talosconfig expires.
// Its errors never repeat content.
func TalosconfigExpiry(raw []byte) (time.Time, error) {
	credentials, _, err := ParseTalosconfig(raw)
	if err != nil {
		return time.Time{}, err
	}
	_, notAfter, err := Validity(credentials)

	return notAfter, err
}

// CAExpiries are when the CAs of a cluster expire.
type CAExpiries struct {
	// Kubernetes is the CA of the Kubernetes API.
	Kubernetes time.Time
	// Aggregator is the CA of the front proxy of the Kubernetes API.
	Aggregator time.Time
	// Etcd is the CA of etcd.
	Etcd time.Time
	// Talos is the CA of the Talos API.
	Talos time.Time
}

// CAExpiries are when the CAs of the bundle expire.
func (b *Bundle) CAExpiries() (CAExpiries, error) {
	var found CAExpiries
	for _, ca := range []struct {
		into *time.Time
		pem  []byte
		name string
	}{
		{&found.Kubernetes, b.parsed.Certs.K8s.Crt, "Kubernetes"},
		{&found.Aggregator, b.parsed.Certs.K8sAggregator.Crt, "aggregator"},
		{&found.Etcd, b.parsed.Certs.Etcd.Crt, "etcd"},
		{&found.Talos, b.parsed.Certs.OS.Crt, "Talos"},
	} {
		cert, err := parseCertificate(ca.pem)
		if err != nil {
			return CAExpiries{}, fmt.Errorf("reading the %s CA of the secrets bundle: %w", ca.name, err)
		}
		*ca.into = cert.NotAfter
	}

	return found, nil
}

func isCertificate(encoded []byte, want *x509.Certificate) bool {
	cert, err := parseCertificate(encoded)

	return err == nil && cert.Equal(want)
}

// parseCertificate reads the first certificate of a PEM text.
func parseCertificate(encoded []byte) (*x509.Certificate, error) {
	block, _ := pem.Decode(encoded)
	if block == nil || block.Type != "CERTIFICATE" {
		return nil, errInvalidPEM
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return nil, errInvalidPEM
	}

	return cert, nil
}
