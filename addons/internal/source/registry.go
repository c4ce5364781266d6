package source

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/errdef"
	"oras.land/oras-go/v2/registry/remote"
	"oras.land/oras-go/v2/registry/remote/auth"
	"oras.land/oras-go/v2/registry/remote/credentials"
	"oras.land/oras-go/v2/registry/remote/errcode"

	addonv1 "github.com/capi-talos/capi-talos/addons/api/v1alpha1"
)

const (
	// chartMediaType is that of the archive of a chart in a registry
	// (helm.sh/helm/v3/pkg/registry/constants.go).
	chartMediaType = "application/vnd.cncf.helm.chart.content.v1.tar+gzip"
	// maxManifest is how large the manifest of an artifact may be, in bytes.
	maxManifest = 4 << 20
	// maxTags is how many tags of a repository are looked at, and maxPages on how many pages
	// they may be.
	maxTags, maxPages = 20_000, 1000
)

func (n Network) findInRegistry(ctx context.Context, source addonv1.RegistrySource, access Access) (Found, error) {
	repository, err := n.openRegistry(source, access)
	if err != nil {
		return Found{}, err
	}
	asked := request{what: "asking " + source.URL, login: source.CredentialsSecretName, ca: source.CASecretName}
	var versions []string
	pages := 0
	err = repository.Tags(ctx, "", func(tags []string) error {
		for _, tag := range tags {
			// A tag cannot have the + of a version (pkg/registry/client.go).
			versions = append(versions, strings.ReplaceAll(tag, "_", "+"))
		}
		if pages++; len(versions) > maxTags || pages > maxPages {
			return failf(addonv1.SourceRefusedReason, "%s: it has more than %d tags, or %d pages of them", asked.what, maxTags, maxPages)
		}
		return nil
	})
	if err != nil {
		return Found{}, asked.registryFailure(err)
	}
	version, err := newest(versions, source.Version)
	if err != nil {
		return Found{}, err
	}
	layer, err := chartLayer(ctx, repository, version)
	if err != nil {
		return Found{}, asked.registryFailure(err)
	}

	return Found{Version: version, Digest: layer.Digest.String(), fetch: func(ctx context.Context) ([]byte, error) {
		blob, err := repository.Blobs().Fetch(ctx, layer)
		if err != nil {
			return nil, asked.registryFailure(err)
		}
		defer func() { _ = blob.Close() }()
		return asked.read(blob, maxArchive)
	}}, nil
}

// openRegistry prepares requests to a repository of a registry. Credentials are sought
// by the host. They go to it, and where it has its tokens given out, as the distribution
// protocol has it.
func (n Network) openRegistry(source addonv1.RegistrySource, access Access) (*remote.Repository, error) {
	repository, err := remote.NewRepository(strings.TrimPrefix(source.URL, "oci://"))
	if err != nil {
		return nil, failf(addonv1.SourceNotFoundReason, "url is no repository of a registry: %v", err)
	}
	repository.PlainHTTP = source.Insecure == addonv1.AllowHTTP
	client, err := n.client(access.CA, repository.PlainHTTP)
	if err != nil {
		return nil, failf(addonv1.SecretInvalidReason, "Secret %s, key ca.crt: %v", source.CASecretName, err)
	}
	requests := &auth.Client{Client: client, Header: http.Header{"User-Agent": {"capi-talos"}}}
	if access.DockerConfig != nil {
		store, err := credentials.NewMemoryStoreFromDockerConfig(access.DockerConfig)
		if err != nil {
			return nil, failf(addonv1.SecretInvalidReason, "Secret %s has no docker config", source.CredentialsSecretName)
		}
		requests.Credential = credentials.Credential(store)
	}
	repository.Client = requests

	return repository, nil
}

// chartLayer is where the archive of a version is.
func chartLayer(ctx context.Context, repository *remote.Repository, version string) (ocispec.Descriptor, error) {
	described, content, err := repository.FetchReference(ctx, strings.ReplaceAll(version, "+", "_"))
	if err != nil {
		return ocispec.Descriptor{}, err
	}
	defer func() { _ = content.Close() }()
	asked := request{what: "reading the manifest of version " + version}
	text, err := asked.read(content, maxManifest)
	if err != nil {
		return ocispec.Descriptor{}, err
	}
	if DigestOf(text) != described.Digest.String() {
		return ocispec.Descriptor{}, failf(addonv1.ChartInvalidReason, "%s: it has another digest than the registry says", asked.what)
	}
	manifest := ocispec.Manifest{}
	if err := json.Unmarshal(text, &manifest); err != nil {
		return ocispec.Descriptor{}, failf(addonv1.ChartInvalidReason, "%s: %v", asked.what, err)
	}
	for _, layer := range manifest.Layers {
		if layer.MediaType == chartMediaType {
			if layer.Size > maxArchive {
				return ocispec.Descriptor{}, failf(addonv1.ChartInvalidReason, "the archive of version %s is larger than %d MiB", version, maxArchive>>20)
			}
			return layer, nil
		}
	}

	return ocispec.Descriptor{}, failf(addonv1.ChartInvalidReason, "version %s is no chart: it has no layer of type %s", version, chartMediaType)
}

// registryFailure is why a registry could not be asked.
func (r request) registryFailure(err error) error {
	if said := (*errcode.ErrorResponse)(nil); errors.As(err, &said) {
		return r.status(said.StatusCode)
	}
	if errors.Is(err, errdef.ErrNotFound) {
		return r.status(http.StatusNotFound)
	}
	if errors.Is(err, auth.ErrBasicCredentialNotFound) {
		return r.status(http.StatusUnauthorized)
	}

	return r.failure(err)
}
