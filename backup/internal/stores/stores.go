// Package stores opens the stores that TalosBackupStores describe.
package stores

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"filippo.io/age"
	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
	"github.com/minio/minio-go/v7/pkg/encrypt"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	backupv1 "github.com/capi-talos/capi-talos/backup/api/v1alpha1"
	"github.com/capi-talos/capi-talos/backup/internal/pipeline"
	"github.com/capi-talos/capi-talos/backup/internal/store"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/egress"
)

// InvalidError says what is wrong with the description of a store, with the reason of
// condition Ready. It does not pass before somebody changes something.
type InvalidError struct {
	Reason, Message string
}

// Error implements error.
func (e *InvalidError) Error() string { return e.Message }

func invalidf(reason, format string, args ...any) error {
	return &InvalidError{Reason: reason, Message: fmt.Sprintf(format, args...)}
}

// Opener opens stores. Live and Clock are required.
type Opener struct {
	// Live reads Secrets from the API server: credentials are those of now.
	Live client.Reader
	// Guard says at which addresses servers may be.
	Guard egress.Guard
	// Clock tells the time. It is required.
	Clock clock.PassiveClock
	// Attempts is how often a request is made that fails in a way that may pass; 0 is the
	// default of the store.
	Attempts int
	// Patience is for how long a server may neither take nor send anything; 0 is the default of
	// the store.
	Patience time.Duration
}

// Opened is a store that was opened.
type Opened struct {
	*store.Store

	// Prefix is where its backups are.
	Prefix string
	// Recipients are who can read what is stored from now on, and Keys their public keys.
	Recipients []age.Recipient
	Keys       []string
	// Versions changes with the Secrets of the store.
	Versions string
}

// Open opens a store, and makes no request to it. What its users must mend is an
// InvalidError.
func (o *Opener) Open(ctx context.Context, of *backupv1.TalosBackupStore) (*Opened, error) {
	s3 := &of.Spec.S3
	opened := &Opened{Prefix: s3.Prefix, Keys: of.Spec.Recipients}
	config := store.Config{
		Endpoint: s3.Endpoint, Bucket: s3.Bucket, Region: s3.Region, PathStyle: s3.Addressing != backupv1.AddressingVirtualHost,
		Guard: o.Guard, Attempts: o.Attempts, Patience: o.Patience,
	}
	secrets := &secretReader{opener: o, store: of, opened: opened}
	var err error
	if config.Credentials, err = secrets.credentials(ctx, s3.CredentialsSecretName); err != nil {
		return nil, err
	}
	if s3.CASecretName != "" {
		if config.CA, err = secrets.key(ctx, s3.CASecretName, backupv1.CAKey); err != nil {
			return nil, err
		}
	}
	if config.Encryption, err = secrets.encryption(ctx, s3.Encryption); err != nil {
		return nil, err
	}
	if lock := s3.ObjectLock; lock.Mode != "" {
		config.Lock = &store.Lock{Mode: minio.RetentionMode(strings.ToUpper(string(lock.Mode))), For: time.Duration(ptr.Deref(lock.Days, 0)) * 24 * time.Hour}
	}
	if opened.Recipients, err = pipeline.ParseRecipients(of.Spec.Recipients); err != nil {
		return nil, invalidf(backupv1.ConfigurationInvalidReason, "recipients: %v", err)
	}
	if opened.Store, err = store.Open(config, o.Clock.Now); err != nil {
		return nil, invalidf(backupv1.ConfigurationInvalidReason, "%v", err)
	}

	return opened, nil
}

// Identities reads the private keys in a Secret beside a store with which its backups are
// read, or in that which the store names; none where it names none. What users must mend is an
// InvalidError.
func (o *Opener) Identities(ctx context.Context, of *backupv1.TalosBackupStore, name string) ([]age.Identity, error) {
	name = cmp.Or(name, of.Spec.IdentitySecretName)
	if name == "" {
		return nil, nil
	}
	secrets := &secretReader{opener: o, store: of, opened: &Opened{}}
	file, err := secrets.key(ctx, name, backupv1.IdentitiesKey)
	if err != nil {
		return nil, err
	}
	identities, err := pipeline.ParseIdentities(file)
	if err != nil {
		return nil, invalidf(backupv1.SecretInvalidReason, "the key %s of Secret %s: %v", backupv1.IdentitiesKey, name, err)
	}

	return identities, nil
}

// secretReader reads the Secrets of one store.
type secretReader struct {
	opener *Opener
	store  *backupv1.TalosBackupStore
	opened *Opened
}

func (s *secretReader) get(ctx context.Context, name string) (map[string][]byte, error) {
	secret := &corev1.Secret{}
	err := s.opener.Live.Get(ctx, client.ObjectKey{Namespace: s.store.Namespace, Name: name}, secret)
	if apierrors.IsNotFound(err) {
		return nil, invalidf(backupv1.SecretInvalidReason, "Secret %s is missing", name)
	}
	if err != nil {
		return nil, fmt.Errorf("reading Secret %s: %w", name, err)
	}
	s.opened.Versions += string(secret.UID) + "/" + secret.ResourceVersion + " "

	return secret.Data, nil
}

func (s *secretReader) key(ctx context.Context, name, key string) ([]byte, error) {
	data, err := s.get(ctx, name)
	if err != nil {
		return nil, err
	}
	if len(data[key]) == 0 {
		return nil, invalidf(backupv1.SecretInvalidReason, "Secret %s lacks the key %s", name, key)
	}

	return data[key], nil
}

func (s *secretReader) credentials(ctx context.Context, name string) (credentials.Value, error) {
	data, err := s.get(ctx, name)
	if err != nil {
		return credentials.Value{}, err
	}
	for _, key := range []string{backupv1.AccessKeyIDKey, backupv1.SecretAccessKeyKey} {
		if len(data[key]) == 0 {
			return credentials.Value{}, invalidf(backupv1.SecretInvalidReason, "Secret %s lacks the key %s", name, key)
		}
	}

	return credentials.Value{
		AccessKeyID: trimmed(data[backupv1.AccessKeyIDKey]), SecretAccessKey: trimmed(data[backupv1.SecretAccessKeyKey]), SessionToken: trimmed(data[backupv1.SessionTokenKey]),
	}, nil
}

// trimmed is what a Secret has without the end of the line that editors leave.
func trimmed(value []byte) string { return strings.TrimSpace(string(value)) }

func (s *secretReader) encryption(ctx context.Context, with backupv1.ServerSideEncryption) (encrypt.ServerSide, error) {
	switch with.Type {
	case backupv1.EncryptionS3:
		return encrypt.NewSSE(), nil
	case backupv1.EncryptionKMS:
		made, err := encrypt.NewSSEKMS(with.KMSKeyID, nil)
		if err != nil {
			return nil, invalidf(backupv1.ConfigurationInvalidReason, "encryption: %v", err)
		}

		return made, nil
	case backupv1.EncryptionCustomerKey:
		key, err := s.key(ctx, with.CustomerKeySecretName, backupv1.CustomerKeyKey)
		if err != nil {
			return nil, err
		}
		made, err := encrypt.NewSSEC(key)
		if err != nil {
			// Its error could say what the key is.
			return nil, invalidf(backupv1.SecretInvalidReason, "the key %s of Secret %s has %d bytes and not 32", backupv1.CustomerKeyKey, with.CustomerKeySecretName, len(key))
		}

		return made, nil
	}

	return nil, nil //nolint:nilnil // The server does as it does by itself.
}
