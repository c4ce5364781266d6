// Package source finds charts in repositories, registries and ConfigMaps, and fetches
// them. It reaches servers that users name, and so takes care where those are, how much
// they send, and whom it tells a password.
package source

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"

	"github.com/Masterminds/semver/v3"

	addonv1 "github.com/capi-talos/capi-talos/addons/api/v1alpha1"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/egress"
)

// maxArchive is how large the archive of a chart may be, in bytes. Helm stores a release
// with its chart in a Secret, which takes 1 MiB.
const maxArchive = 16 << 20

// Error says why a source has no chart, with the reason of condition ChartAvailable.
type Error struct {
	Reason, Message string
}

// Error implements error.
func (e *Error) Error() string { return e.Message }

func failf(reason, format string, args ...any) error {
	return &Error{Reason: reason, Message: fmt.Sprintf(format, args...)}
}

// Access is what it takes to use a source.
type Access struct {
	// Username and Password are those of a repository; empty when nobody logs in.
	Username, Password string
	// DockerConfig is that of a registry; nil when nobody logs in.
	DockerConfig []byte
	// CA are the certificates that are trusted; nil for those of the system.
	CA []byte
}

// Found is a chart that a source has.
type Found struct {
	Version string
	// Digest is the SHA-256 digest of the archive, sha256:<hex>; empty where the source
	// does not tell it before the archive is fetched.
	Digest string

	fetch func(ctx context.Context) ([]byte, error)
}

// Fetch fetches the archive, and checks it against the digest.
func (f Found) Fetch(ctx context.Context) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	archive, err := f.fetch(ctx)
	if err != nil {
		return nil, err
	}
	if digest := DigestOf(archive); f.Digest != "" && digest != f.Digest {
		return nil, failf(addonv1.ChartInvalidReason, "the archive of version %s has the digest %s and not %s, as its source says", f.Version, digest, f.Digest)
	}

	return archive, nil
}

// DigestOf is the SHA-256 digest of an archive.
func DigestOf(archive []byte) string {
	sum := sha256.Sum256(archive)

	return "sha256:" + hex.EncodeToString(sum[:])
}

// Find finds the newest chart of a repository or registry that its version allows.
func (n Network) Find(ctx context.Context, source addonv1.AddonSource, access Access) (Found, error) {
	// A registry may always have a next page.
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	switch {
	case source.Repository != (addonv1.RepositorySource{}):
		return n.findInRepository(ctx, source.Repository, access)
	case source.Registry != (addonv1.RegistrySource{}):
		return n.findInRegistry(ctx, source.Registry, access)
	}

	return Found{}, failf(addonv1.SourceNotFoundReason, "the source names neither a repository nor a registry")
}

// newest is the newest of some versions that is in a range. Pre-releases count only where
// the range names one.
func newest(versions []string, wanted string) (string, error) {
	if wanted == "" {
		wanted = "*"
	}
	constraint, err := semver.NewConstraint(wanted)
	if err != nil {
		return "", failf(addonv1.VersionNotFoundReason, "version %q is neither a version nor a range of versions", wanted)
	}
	var best *semver.Version
	chosen := ""
	for _, text := range versions {
		if text == wanted {
			return text, nil
		}
		version, err := semver.NewVersion(text)
		if err == nil && constraint.Check(version) && (best == nil || version.GreaterThan(best)) {
			best, chosen = version, text
		}
	}
	if best == nil {
		return "", failf(addonv1.VersionNotFoundReason, "none of its %d versions is %s", len(versions), wanted)
	}

	return chosen, nil
}

// CheckVersion reports why a text is no version or range; nil when it is.
func CheckVersion(text string) error {
	if text == "" {
		return nil
	}
	_, err := semver.NewConstraint(text)

	return err
}

// request is what a server is asked for, as errors tell it.
type request struct {
	// what is being done.
	what string
	// login and ca are the names of the Secrets with the credentials and the CA; empty
	// when there is none.
	login, ca string
}

// read reads at most so many bytes.
func (r request) read(from io.Reader, limit int64) ([]byte, error) {
	content, err := io.ReadAll(io.LimitReader(from, limit+1))
	if err != nil {
		return nil, r.failure(err)
	}
	if int64(len(content)) > limit {
		return nil, failf(addonv1.ChartInvalidReason, "%s: it is larger than %d MiB", r.what, limit>>20)
	}

	return content, nil
}

// failure is why a server could not be asked.
func (r request) failure(err error) error {
	if said := (*Error)(nil); errors.As(err, &said) {
		return err
	}
	if errors.Is(err, egress.ErrForbidden) {
		return failf(addonv1.SourceRefusedReason, "%s: %v; the manager allows it with --allow-local-sources", r.what, egress.ErrForbidden)
	}
	if errors.Is(err, errNotHTTPS) || errors.Is(err, http.ErrSchemeMismatch) {
		return failf(addonv1.SourceRefusedReason, "%s: %v; set insecure: AllowHTTP to allow it, where everybody on the way can change the chart", r.what, err)
	}
	if untrusted := (*tls.CertificateVerificationError)(nil); errors.As(err, &untrusted) {
		return failf(addonv1.SourceUnreachableReason, "%s: the certificate of the server is not trusted: %v; %s", r.what, untrusted.Err, advice("the CA under ca.crt", r.ca, "caSecretName"))
	}
	if name := (*net.DNSError)(nil); errors.As(err, &name) && name.IsNotFound {
		return failf(addonv1.SourceNotFoundReason, "%s: there is no host %s", r.what, name.Name)
	}

	return failf(addonv1.SourceUnreachableReason, "%s: %v", r.what, err)
}

// status is what an answer means that is not OK.
func (r request) status(status int) error {
	switch status {
	case http.StatusOK:
		return nil
	case http.StatusUnauthorized, http.StatusForbidden:
		return failf(addonv1.SourceUnauthorizedReason, "%s: the server answers %d %s; %s", r.what, status, http.StatusText(status), advice("credentials", r.login, "credentialsSecretName"))
	case http.StatusNotFound, http.StatusGone:
		return failf(addonv1.SourceNotFoundReason, "%s: the server answers %d %s", r.what, status, http.StatusText(status))
	}

	return failf(addonv1.SourceUnreachableReason, "%s: the server answers %d %s", r.what, status, http.StatusText(status))
}

// advice says what to do about content of a Secret that the server does not take, or wants.
func advice(content, secret, field string) string {
	if secret == "" {
		return fmt.Sprintf("name a Secret in %s that has %s", field, content)
	}

	return fmt.Sprintf("check Secret %s, which has %s", secret, content)
}
