// Package credentials keeps the client certificates with which the provider
// talks to configured machines: a reader's in memory, and an administrator's
// per host in a Secret that outlives the cluster, so that the machine can be
// wiped (design D10).
package credentials

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/secrets"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
)

// adminLife is how long an administrator's certificate is valid. A host may have to be
// wiped long after the bundle of its cluster is gone. It is renewed at half of that
// while the bundle is there.
const adminLife = 365 * 24 * time.Hour

// ErrMissing says that a Secret with credentials is not there, or holds none.
var ErrMissing = errors.New("the client certificate is missing")

// ErrNoAdmin says that credentials lack the role that may wipe a machine.
var ErrNoAdmin = errors.New("the client certificate lacks the role " + secrets.RoleAdmin)

// ErrInUse says that credentials are those of a Cluster or of another TalosHost that
// exists: they are not the user's to give for a machine of somebody else.
var ErrInUse = errors.New("it is for machines in use")

// Store gives out credentials. All fields are required.
type Store struct {
	client  client.Client
	secrets client.Reader
	clock   clock.PassiveClock
	readers *secrets.ClientCertificates
}

// New returns a Store that reads bundles and administrators' certificates
// through cached, and everything else through c.
func New(c client.Client, cached client.Reader, passiveClock clock.PassiveClock) *Store {
	return &Store{client: c, secrets: cached, clock: passiveClock, readers: secrets.NewClientCertificates(passiveClock)}
}

// AdminName is the name of the Secret with the administrator's certificate of
// a host.
func AdminName(host string) string {
	return host + infrav1.AdminSecretSuffix
}

// Reader are credentials that may look at the machine of a host: minted from
// the bundle of the cluster, or the administrator's of the host where that is
// gone.
func (s *Store) Reader(ctx context.Context, cluster client.ObjectKey, host *infrav1.TalosHost) (talosclient.Credentials, error) {
	creds, err := s.OfCluster(ctx, cluster)
	if errors.Is(err, secrets.ErrBundleMissing) {
		return s.Admin(ctx, host)
	}

	return creds, err
}

// OfCluster are credentials that may look at the machines of a cluster. Errors:
// secrets.ErrBundleMissing where there is nothing to make them from.
func (s *Store) OfCluster(ctx context.Context, cluster client.ObjectKey) (talosclient.Credentials, error) {
	bundle, err := secrets.GetBundle(ctx, s.secrets, cluster)
	if err != nil {
		return talosclient.Credentials{}, err
	}

	return s.readers.For(cluster, bundle, secrets.RoleReader)
}

// Admin are the administrator's credentials of a host. ErrMissing says that
// there are none.
func (s *Store) Admin(ctx context.Context, host *infrav1.TalosHost) (talosclient.Credentials, error) {
	_, creds, err := fromSecret(ctx, s.secrets, client.ObjectKey{Namespace: host.Namespace, Name: AdminName(host.Name)})

	return creds, err
}

// Adoption are the credentials that the user has given for a machine that
// somebody else has configured. ErrMissing says that there are none, ErrNoAdmin
// that they may not wipe it, ErrInUse whose they are.
func (s *Store) Adoption(ctx context.Context, host *infrav1.TalosHost) (talosclient.Credentials, error) {
	if host.Spec.AdoptionSecretRef.Name == "" {
		return talosclient.Credentials{}, ErrMissing
	}

	// The cache keeps the content of our own Secrets only.
	stored, creds, err := fromSecret(ctx, s.client, client.ObjectKey{Namespace: host.Namespace, Name: host.Spec.AdoptionSecretRef.Name})
	if err != nil {
		return talosclient.Credentials{}, err
	}
	if err := s.refuseInUse(ctx, stored); err != nil {
		return talosclient.Credentials{}, err
	}
	if admin, err := isAdmin(creds); err != nil || !admin {
		return talosclient.Credentials{}, fmt.Errorf("reading Secret %s: %w", host.Spec.AdoptionSecretRef.Name, ErrNoAdmin)
	}

	return creds, nil
}

// refuseInUse refuses a Secret that goes with a Cluster or a TalosHost that exists: with
// it whoever may write hosts would wipe the machines of that.
func (s *Store) refuseInUse(ctx context.Context, stored *corev1.Secret) error {
	owners := []metav1.OwnerReference{{Kind: clusterv1.ClusterKind, Name: stored.Labels[clusterv1.ClusterNameLabel]}}
	for _, owner := range append(owners, stored.OwnerReferences...) {
		object := map[string]client.Object{clusterv1.ClusterKind: &clusterv1.Cluster{}, infrav1.TalosHostKind: &infrav1.TalosHost{}}[owner.Kind]
		if object == nil || owner.Name == "" {
			continue
		}
		err := s.client.Get(ctx, client.ObjectKey{Namespace: stored.Namespace, Name: owner.Name}, object)
		if err == nil {
			return fmt.Errorf("Secret %s belongs to %s %s: %w", stored.Name, owner.Kind, owner.Name, ErrInUse) //nolint:staticcheck // The kind has its name.
		}
		if !apierrors.IsNotFound(err) {
			return fmt.Errorf("reading %s %s: %w", owner.Kind, owner.Name, err)
		}
	}

	return nil
}

// isAdmin reports whether Talos lets a client do everything.
func isAdmin(creds talosclient.Credentials) (bool, error) {
	block, _ := pem.Decode(creds.Cert)
	if block == nil {
		return false, ErrMissing
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return false, fmt.Errorf("reading the client certificate: %w", err)
	}

	return slices.Contains(cert.Subject.Organization, secrets.RoleAdmin), nil
}

func fromSecret(ctx context.Context, reader client.Reader, key client.ObjectKey) (*corev1.Secret, talosclient.Credentials, error) {
	stored := &corev1.Secret{}
	if err := reader.Get(ctx, key, stored); err != nil {
		if apierrors.IsNotFound(err) {
			return nil, talosclient.Credentials{}, fmt.Errorf("reading Secret %s: %w", key, ErrMissing)
		}

		return nil, talosclient.Credentials{}, fmt.Errorf("reading Secret %s: %w", key, err)
	}
	creds, _, err := secrets.ParseTalosconfig(stored.Data[infrav1.AdminSecretKey])
	if err != nil {
		return nil, talosclient.Credentials{}, fmt.Errorf("reading Secret %s: %w: %w", key, ErrMissing, err)
	}

	return stored, creds, nil
}

// EnsureAdmin makes the Secret with the administrator's certificate of a host,
// or renews it. It must be called before the machine is configured, for
// nothing can be created while a namespace terminates. Once the machine may have
// its configuration, the certificate stays that of the CA that it was given, for
// the machine accepts no other, whatever the bundle of the cluster is now. Errors:
// secrets.ErrBundleMissing where there is nothing to make it from.
func (s *Store) EnsureAdmin(ctx context.Context, cluster client.ObjectKey, host *infrav1.TalosHost) error {
	stored := &corev1.Secret{}
	key := client.ObjectKey{Namespace: host.Namespace, Name: AdminName(host.Name)}
	err := s.client.Get(ctx, key, stored)
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("reading Secret %s: %w", key, err)
	}
	exists := err == nil

	issuer, err := s.issuer(ctx, cluster)
	if err != nil {
		return err
	}
	if exists && isBound(stored, host) && (isOnlyKey(stored, host, issuer) || s.isCurrent(stored, cluster, issuer)) {
		return nil
	}
	talosconfig, err := s.talosconfig(stored, cluster, host, issuer)
	if err != nil {
		return fmt.Errorf("making the administrator's certificate of TalosHost %s: %w", host.Name, err)
	}

	desired := stored.DeepCopy()
	desired.Namespace, desired.Name, desired.Type = key.Namespace, key.Name, clusterv1.ClusterSecretType
	if exists {
		desired.Type = stored.Type
	}
	if desired.Labels == nil {
		desired.Labels = map[string]string{}
	}
	desired.Labels[clusterv1.ClusterNameLabel] = cluster.Name
	desired.Labels[infrav1.MoveLabel] = ""
	desired.Data = map[string][]byte{infrav1.AdminSecretKey: talosconfig}
	desired.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(host, infrav1.GroupVersion.WithKind(infrav1.TalosHostKind))}
	controllerutil.AddFinalizer(desired, infrav1.TalosHostFinalizer)
	if exists {
		err = s.client.Update(ctx, desired)
	} else {
		err = s.client.Create(ctx, desired)
	}
	if err != nil {
		return fmt.Errorf("writing Secret %s: %w", key, err)
	}

	return nil
}

// RenewAdmin renews the Secret where it is due and can be, and binds it to its
// host again when somebody has stripped it; a bundle that is missing or invalid is no
// error, because the Secret is there for that case.
func (s *Store) RenewAdmin(ctx context.Context, cluster client.ObjectKey, host *infrav1.TalosHost) error {
	stored := &corev1.Secret{}
	key := client.ObjectKey{Namespace: host.Namespace, Name: AdminName(host.Name)}
	if err := s.secrets.Get(ctx, key, stored); err == nil && isBound(stored, host) {
		if creds, _, err := secrets.ParseTalosconfig(stored.Data[infrav1.AdminSecretKey]); err == nil && secrets.IsFresh(creds, s.clock.Now()) {
			return nil
		}
	}
	err := s.EnsureAdmin(ctx, cluster, host)
	if errors.Is(err, secrets.ErrBundleMissing) || errors.Is(err, secrets.ErrBundleInvalid) {
		return nil
	}

	return err
}

// isBound reports whether a Secret goes with its host, and not before we let it.
func isBound(stored *corev1.Secret, host *infrav1.TalosHost) bool {
	return metav1.IsControlledBy(stored, host) && controllerutil.ContainsFinalizer(stored, infrav1.TalosHostFinalizer)
}

// talosconfig is what the Secret of a host is to hold.
func (s *Store) talosconfig(stored *corev1.Secret, cluster client.ObjectKey, host *infrav1.TalosHost, issuer *issuer) ([]byte, error) {
	if isOnlyKey(stored, host, issuer) {
		return stored.Data[infrav1.AdminSecretKey], nil
	}

	return issuer.talosconfig(cluster.Name, host.Spec.Addresses, s.clock.Now())
}

// isOnlyKey reports whether a Secret holds the certificate that a machine accepts which
// may have its configuration, and the issuer would make one of another CA.
func isOnlyKey(stored *corev1.Secret, host *infrav1.TalosHost, issuer *issuer) bool {
	if host.Spec.Handover.ProviderID == "" {
		return false
	}
	creds, _, err := secrets.ParseTalosconfig(stored.Data[infrav1.AdminSecretKey])

	return err == nil && string(creds.CA) != string(issuer.ca)
}

// isCurrent reports whether a Secret is of this cluster and not due.
func (s *Store) isCurrent(stored *corev1.Secret, cluster client.ObjectKey, issuer *issuer) bool {
	creds, _, err := secrets.ParseTalosconfig(stored.Data[infrav1.AdminSecretKey])

	return err == nil && stored.DeletionTimestamp.IsZero() &&
		stored.Labels[clusterv1.ClusterNameLabel] == cluster.Name &&
		string(creds.CA) == string(issuer.ca) && (issuer.bundle == nil || secrets.IsFresh(creds, s.clock.Now()))
}

// issuer is what an administrator's certificate can be made from: the bundle
// of the cluster, else its talosconfig.
type issuer struct {
	ca     []byte
	bundle *secrets.Bundle
	raw    []byte
}

func (s *Store) issuer(ctx context.Context, cluster client.ObjectKey) (*issuer, error) {
	bundle, err := secrets.GetBundle(ctx, s.secrets, cluster)
	if err == nil {
		return &issuer{ca: bundle.TalosCA(), bundle: bundle}, nil
	}
	if !errors.Is(err, secrets.ErrBundleMissing) {
		return nil, err
	}
	stored := &corev1.Secret{}
	key := client.ObjectKey{Namespace: cluster.Namespace, Name: secrets.TalosconfigName(cluster.Name)}
	if getErr := s.client.Get(ctx, key, stored); getErr != nil {
		if apierrors.IsNotFound(getErr) {
			return nil, err
		}

		return nil, fmt.Errorf("reading Secret %s: %w", key, getErr)
	}
	creds, _, parseErr := secrets.ParseTalosconfig(stored.Data[secrets.TalosconfigKey])
	if parseErr != nil {
		return nil, err
	}

	return &issuer{ca: creds.CA, raw: stored.Data[secrets.TalosconfigKey]}, nil
}

func (i *issuer) talosconfig(cluster string, addresses []string, now time.Time) ([]byte, error) {
	if i.bundle == nil {
		return i.raw, nil
	}
	creds, err := i.bundle.ClientCredentials(secrets.RoleAdmin, now, adminLife)
	if err != nil {
		return nil, err
	}

	return secrets.Talosconfig(cluster, addresses, creds)
}

// DeleteAdmin deletes the Secret of a host and takes our finalizer off it. It
// is no error when there is none.
func (s *Store) DeleteAdmin(ctx context.Context, host *infrav1.TalosHost) error {
	stored := &corev1.Secret{}
	key := client.ObjectKey{Namespace: host.Namespace, Name: AdminName(host.Name)}
	if err := s.client.Get(ctx, key, stored); err != nil {
		return client.IgnoreNotFound(err)
	}
	if !controllerutil.ContainsFinalizer(stored, infrav1.TalosHostFinalizer) && !metav1.IsControlledBy(stored, host) {
		return nil
	}
	if err := s.client.Delete(ctx, stored); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("deleting Secret %s: %w", key, err)
	}
	before := stored.DeepCopy()
	if controllerutil.RemoveFinalizer(stored, infrav1.TalosHostFinalizer) {
		if err := s.client.Patch(ctx, stored, client.MergeFrom(before)); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("removing the finalizer of Secret %s: %w", key, err)
		}
	}

	return nil
}
