// Package secrets reads and makes the key material of a Talos cluster: the
// secrets bundle, the Kubernetes CA and client configurations of the Talos API.
//
// Names and keys are those that other Talos tools read: <cluster>-talos with
// the key bundle, <cluster>-ca, <cluster>-talosconfig with the key talosconfig.
package secrets

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/siderolabs/crypto/x509"
	"github.com/siderolabs/talos/pkg/machinery/config"
	"github.com/siderolabs/talos/pkg/machinery/config/configloader"
	"github.com/siderolabs/talos/pkg/machinery/config/generate/secrets"
	"github.com/siderolabs/talos/pkg/machinery/role"
	"go.yaml.in/yaml/v4"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/cluster-api/util/secret"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
)

// Keys of the Secrets.
const (
	// BundleKey holds the secrets bundle as YAML.
	BundleKey = "bundle"
	// TalosconfigKey holds a client configuration of the Talos API.
	TalosconfigKey = "talosconfig"
)

// Roles of the Talos API, from least to most.
const (
	RoleReader     = string(role.Reader)
	RoleEtcdBackup = string(role.EtcdBackup)
	RoleAdmin      = string(role.Admin)
)

var (
	// ErrBundleMissing says that a cluster has no secrets bundle.
	ErrBundleMissing = errors.New("the secrets bundle of the cluster is missing")
	// ErrBundleInvalid says that a Secret holds no usable secrets bundle.
	ErrBundleInvalid = errors.New("the secrets bundle of the cluster is not valid")
)

// BundleName is the name of the Secret that holds the bundle of a cluster.
func BundleName(cluster string) string { return cluster + "-talos" }

// TalosconfigName is the name of the Secret that holds the administrator's
// client configuration of a cluster.
func TalosconfigName(cluster string) string { return cluster + "-talosconfig" }

// CAName is the name of the Secret that holds the Kubernetes CA of a cluster.
func CAName(cluster string) string { return secret.Name(cluster, secret.ClusterCA) }

// Bundle is the key material of one cluster. It is never logged; Digest stands
// for it.
type Bundle struct {
	raw    []byte
	parsed *secrets.Bundle
}

// NewBundle makes the key material of a new cluster for a configuration
// contract such as v1.13. kubernetesCA, where it is not nil, is the content of
// a <cluster>-ca Secret that the user made beforehand; its CA is taken. The CAs that
// are made are valid from talosclient.ClockLeeway before now, for nodes whose clock
// lags.
func NewBundle(now time.Time, contract string, kubernetesCA map[string][]byte) (*Bundle, error) {
	versionContract, err := config.ParseContractFromVersion(contract)
	if err != nil {
		return nil, fmt.Errorf("reading the configuration contract %q: %w", contract, err)
	}
	parsed, err := secrets.NewBundle(secrets.NewFixedClock(now.Add(-talosclient.ClockLeeway)), versionContract)
	if err != nil {
		return nil, fmt.Errorf("making a secrets bundle: %w", err)
	}
	if kubernetesCA != nil {
		parsed.Certs.K8s = &x509.PEMEncodedCertificateAndKey{
			Crt: kubernetesCA[secret.TLSCrtDataName], Key: kubernetesCA[secret.TLSKeyDataName],
		}
	}
	if err := parsed.Validate(versionContract); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrBundleInvalid, err)
	}
	raw, err := yaml.Marshal(parsed)
	if err != nil {
		return nil, fmt.Errorf("encoding the secrets bundle: %w", err)
	}
	return &Bundle{raw: raw, parsed: parsed}, nil
}

// ParseBundle reads a bundle as `talosctl gen secrets` writes it. Its error
// never repeats content.
func ParseBundle(raw []byte) (*Bundle, error) {
	parsed := &secrets.Bundle{}
	if err := yaml.Unmarshal(raw, parsed); err != nil {
		return nil, fmt.Errorf("%w: it is no YAML of a secrets bundle", ErrBundleInvalid)
	}
	parsed.Clock = secrets.NewClock()
	if err := parsed.Validate(config.TalosVersionCurrent); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrBundleInvalid, err)
	}
	return &Bundle{raw: raw, parsed: parsed}, nil
}

// GetBundle reads the bundle of a cluster. Errors: ErrBundleMissing,
// ErrBundleInvalid, or that of the reader.
func GetBundle(ctx context.Context, reader client.Reader, cluster client.ObjectKey) (*Bundle, error) {
	stored := &corev1.Secret{}
	key := client.ObjectKey{Namespace: cluster.Namespace, Name: BundleName(cluster.Name)}
	if err := reader.Get(ctx, key, stored); err != nil {
		if apierrors.IsNotFound(err) {
			return nil, ErrBundleMissing
		}
		return nil, fmt.Errorf("reading Secret %s: %w", key, err)
	}
	bundle, err := ParseBundle(stored.Data[BundleKey])
	if err != nil {
		return nil, fmt.Errorf("reading Secret %s: %w", key, err)
	}
	return bundle, nil
}

// YAML is the bundle as it is stored.
func (b *Bundle) YAML() []byte { return b.raw }

// Machinery is the bundle as the Talos machinery takes it; it must not be
// changed.
func (b *Bundle) Machinery() *secrets.Bundle { return b.parsed }

// Digest tells two bundles apart without revealing them. It covers what a
// cluster cannot change: the CAs, the cluster's ID and its tokens.
func (b *Bundle) Digest() string {
	sum := sha256.New()
	for _, part := range [][]byte{
		b.parsed.Certs.OS.Crt, b.parsed.Certs.K8s.Crt, b.parsed.Certs.Etcd.Crt, b.parsed.Certs.K8sAggregator.Crt,
		b.parsed.Certs.K8sServiceAccount.Key,
		[]byte(b.parsed.Cluster.ID), []byte(b.parsed.Cluster.Secret), []byte(b.parsed.TrustdInfo.Token),
	} {
		sum.Write(part)
		sum.Write([]byte{0})
	}
	return hex.EncodeToString(sum.Sum(nil))
}

// KubernetesCA is the Kubernetes CA as certificate and key PEM.
func (b *Bundle) KubernetesCA() (certificate, key []byte) {
	return b.parsed.Certs.K8s.Crt, b.parsed.Certs.K8s.Key
}

// ClientCredentials makes a client certificate for the Talos API with one of
// the Role constants. It expires ttl after now. It is valid from
// talosclient.ClockLeeway before now, for a node whose clock lags, but not from
// before its CA.
func (b *Bundle) ClientCredentials(name string, now time.Time, ttl time.Duration) (talosclient.Credentials, error) {
	roles, unknown := role.Parse([]string{name})
	if len(unknown) > 0 {
		return talosclient.Credentials{}, fmt.Errorf("making a client certificate: role %q is not known to Talos", name)
	}
	ca, err := parseCertificate(b.parsed.Certs.OS.Crt)
	if err != nil {
		return talosclient.Credentials{}, fmt.Errorf("reading the CA of the Talos API: %w", err)
	}
	begins := now.Add(-talosclient.ClockLeeway)
	if begins.Before(ca.NotBefore) {
		begins = ca.NotBefore
	}
	pair, err := secrets.NewAdminCertificateAndKey(begins, b.parsed.Certs.OS, roles, now.Add(ttl).Sub(begins))
	if err != nil {
		return talosclient.Credentials{}, fmt.Errorf("making a client certificate of role %s: %w", name, err)
	}
	return talosclient.Credentials{CA: b.parsed.Certs.OS.Crt, Cert: pair.Crt, Key: pair.Key}, nil
}

// BundleOf reads the key material out of the complete configuration of a control
// plane machine. Its error never repeats content.
func BundleOf(configuration []byte) (*Bundle, error) {
	cfg, err := configloader.NewFromBytes(configuration)
	if err != nil || cfg.RawV1Alpha1() == nil || !cfg.Machine().Type().IsControlPlane() {
		return nil, fmt.Errorf("%w: data is no configuration of a control plane machine", ErrBundleInvalid)
	}
	parsed, err := secrets.NewBundleFromConfig(secrets.NewClock(), cfg)
	if err != nil {
		return nil, fmt.Errorf("%w: data lacks key material of a control plane machine", ErrBundleInvalid)
	}
	if err := parsed.Validate(config.TalosVersionCurrent); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrBundleInvalid, err)
	}
	raw, err := yaml.Marshal(parsed)
	if err != nil {
		return nil, fmt.Errorf("encoding the secrets bundle: %w", err)
	}
	return &Bundle{raw: raw, parsed: parsed}, nil
}

// Made reports whether a machine configuration was rendered from the bundle. The
// configuration of a control plane machine holds all of it, that of a worker
// the CA of the Talos API. Its error never repeats content.
func (b *Bundle) Made(configuration []byte) (bool, error) {
	cfg, err := configloader.NewFromBytes(configuration)
	if err != nil || cfg.RawV1Alpha1() == nil {
		return false, errors.New("reading a machine configuration: it is none")
	}
	if cfg.Machine().Type().IsControlPlane() {
		its, err := BundleOf(configuration)
		return err == nil && its.Digest() == b.Digest(), err
	}
	ca := cfg.Machine().Security().IssuingCA()
	if ca == nil {
		return false, errors.New("reading a machine configuration: it has no CA of the Talos API")
	}
	return SamePEM(ca.Crt, b.TalosCA()), nil
}

// SharesCAs reports whether the configuration of a control plane machine has the CAs of the
// Talos API and of Kubernetes that the bundle has, whatever else it has.
func (b *Bundle) SharesCAs(configuration []byte) bool {
	its, err := BundleOf(configuration)

	return err == nil && SamePEM(its.TalosCA(), b.TalosCA()) && SamePEM(its.parsed.Certs.K8s.Crt, b.parsed.Certs.K8s.Crt)
}

// IsAdmitted reports whether a machine of a configuration takes client certificates of the
// bundle: the CA of its Talos API is that of the bundle, or accepted beside its own. Its
// error never repeats content.
func (b *Bundle) IsAdmitted(configuration []byte) (bool, error) {
	cfg, err := configloader.NewFromBytes(configuration)
	if err != nil || cfg.RawV1Alpha1() == nil {
		return false, errors.New("reading a machine configuration: it is none")
	}
	security := cfg.Machine().Security()
	if ca := security.IssuingCA(); ca != nil && SamePEM(ca.Crt, b.TalosCA()) {
		return true, nil
	}

	return slices.ContainsFunc(security.AcceptedCAs(), func(ca *x509.PEMEncodedCertificate) bool {
		return ca != nil && SamePEM(ca.Crt, b.TalosCA())
	}), nil
}

// SamePEM reports whether two texts hold the same certificate or key, however their lines
// end.
func SamePEM(one, other []byte) bool {
	first, _ := pem.Decode(one)
	second, _ := pem.Decode(other)
	if first == nil || second == nil {
		return bytes.Equal(one, other)
	}

	return first.Type == second.Type && bytes.Equal(first.Bytes, second.Bytes)
}

// TalosCA is the certificate of the CA of the Talos API, as PEM.
func (b *Bundle) TalosCA() []byte { return b.parsed.Certs.OS.Crt }

// CASecretData is the content of the <cluster>-ca Secret.
func (b *Bundle) CASecretData() map[string][]byte {
	certificate, key := b.KubernetesCA()
	return map[string][]byte{secret.TLSCrtDataName: certificate, secret.TLSKeyDataName: key}
}
