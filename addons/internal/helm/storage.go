package helm

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"fmt"
	"io"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"

	addonv1 "github.com/capi-talos/capi-talos/addons/api/v1alpha1"
	"github.com/capi-talos/capi-talos/addons/internal/release"
)

const (
	// maxStored is how large the stored revisions of a release may be when they are
	// unpacked, all together, in bytes.
	maxStored = 128 << 20
	// storedKey is the key of a revision in its Secret (pkg/storage/driver/secrets.go).
	storedKey = "release"
)

// boundedSecrets are the Secrets in which Helm stores revisions. Whoever may write Secrets
// in the workload cluster may write these, and Helm unpacks what it finds: 1 MiB can become
// 1 GiB.
type boundedSecrets struct {
	corev1client.SecretInterface
}

// Get returns a Secret, unless what is stored in it is too large.
func (b boundedSecrets) Get(ctx context.Context, name string, options metav1.GetOptions) (*corev1.Secret, error) {
	found, err := b.SecretInterface.Get(ctx, name, options)
	if err != nil {
		return nil, err
	}
	if err := checkStored([]corev1.Secret{*found}); err != nil {
		return nil, err
	}

	return found, nil
}

// List returns Secrets, unless what is stored in them is too large.
func (b boundedSecrets) List(ctx context.Context, options metav1.ListOptions) (*corev1.SecretList, error) {
	found, err := b.SecretInterface.List(ctx, options)
	if err != nil {
		return nil, err
	}
	if err := checkStored(found.Items); err != nil {
		return nil, err
	}

	return found, nil
}

func checkStored(secrets []corev1.Secret) error {
	left := int64(maxStored)
	for i := range secrets {
		if left -= unpackedSize(secrets[i].Data[storedKey], left); left < 0 {
			return &release.RefusedError{Reason: addonv1.ReleaseConflictReason, Message: fmt.Sprintf(
				"the Secrets in which Helm stores the release in the Cluster are larger than %d MiB when they are unpacked (%s): somebody else has written them; delete them there", maxStored>>20, secrets[i].Name)}
		}
	}

	return nil
}

// unpackedSize is how large a stored revision is when it is unpacked, or more than a limit.
// What cannot be unpacked Helm does not read either.
func unpackedSize(stored []byte, limit int64) int64 {
	packed := base64.NewDecoder(base64.StdEncoding, bytes.NewReader(stored))
	unpacked, err := gzip.NewReader(packed)
	if err != nil {
		// It was never packed (pkg/storage/driver/util.go).
		return int64(len(stored))
	}
	size, _ := io.Copy(io.Discard, io.LimitReader(unpacked, limit+1))

	return size
}
