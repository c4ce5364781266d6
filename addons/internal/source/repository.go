package source

import (
	"context"
	"net/http"
	"net/url"
	"strings"

	"go.yaml.in/yaml/v4"

	addonv1 "github.com/capi-talos/capi-talos/addons/api/v1alpha1"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/yamlsize"
)

const (
	// maxIndex is how large the index of a repository may be, in bytes. The largest public
	// ones have some 20 MiB.
	maxIndex = 48 << 20
	// maxMarks is how many values it may have, with all that is not read of it: twice as
	// many as those have.
	maxMarks = 2 << 20
)

// index is what is read of the index of a repository.
type index struct {
	Entries map[string][]struct {
		Version string   `yaml:"version"`
		URLs    []string `yaml:"urls"`
		Digest  string   `yaml:"digest"`
	} `yaml:"entries"`
}

func (n Network) findInRepository(ctx context.Context, source addonv1.RepositorySource, access Access) (Found, error) {
	base, err := url.Parse(source.URL)
	if err != nil {
		return Found{}, failf(addonv1.SourceNotFoundReason, "url is no URL")
	}
	server := repository{source: source, base: base, access: access}
	if server.client, err = n.client(access.CA, source.Insecure == addonv1.AllowHTTP); err != nil {
		return Found{}, failf(addonv1.SecretInvalidReason, "Secret %s, key ca.crt: %v", source.CASecretName, err)
	}
	content, err := server.get(ctx, base.JoinPath("index.yaml"), maxIndex)
	if err != nil {
		return Found{}, err
	}
	read, err := n.readIndex(ctx, content)
	if err != nil {
		return Found{}, request{what: "reading the index of " + source.URL}.failure(err)
	}
	var versions []string
	for _, entry := range read.Entries[source.Chart] {
		versions = append(versions, entry.Version)
	}
	if len(versions) == 0 {
		return Found{}, failf(addonv1.SourceNotFoundReason, "%s has no chart %s", source.URL, source.Chart)
	}
	version, err := newest(versions, source.Version)
	if err != nil {
		return Found{}, err
	}
	for _, entry := range read.Entries[source.Chart] {
		if entry.Version == version && len(entry.URLs) > 0 {
			return server.found(version, entry.URLs[0], entry.Digest)
		}
	}

	return Found{}, failf(addonv1.SourceNotFoundReason, "%s has no archive of chart %s in version %s", source.URL, source.Chart, version)
}

// readIndex reads an index. Only one is read at a time, where Reading says so: it takes
// several times its size in memory.
func (n Network) readIndex(ctx context.Context, content []byte) (index, error) {
	read := index{}
	if err := yamlsize.CheckMarks(content, maxMarks); err != nil {
		return read, failf(addonv1.SourceRefusedReason, "the index of the repository: %v", err)
	}
	if n.Reading != nil {
		if err := n.Reading.Acquire(ctx, 1); err != nil {
			return read, err
		}
		defer n.Reading.Release(1)
	}
	// Not by way of JSON, in which aliases are written out. What the parser says may cite
	// what a server has that is none of a repository, and so is left out.
	if err := yaml.Unmarshal(content, &read); err != nil {
		return read, failf(addonv1.SourceNotFoundReason, "the server has no index of a repository")
	}

	return read, nil
}

// repository is the server of a Helm repository.
type repository struct {
	source addonv1.RepositorySource
	base   *url.URL
	client *http.Client
	access Access
}

func (r repository) found(version, location, digest string) (Found, error) {
	// A folder is relative to itself only with a slash at its end.
	folder := *r.base
	folder.Path = strings.TrimSuffix(folder.Path, "/") + "/"
	archive, err := folder.Parse(location)
	if err != nil || (archive.Scheme != "https" && archive.Scheme != "http") {
		return Found{}, failf(addonv1.SourceNotFoundReason, "the archive of version %s is at %q, which is no https:// URL", version, location)
	}
	found := Found{Version: version, fetch: func(ctx context.Context) ([]byte, error) { return r.get(ctx, archive, maxArchive) }}
	if digest = strings.TrimPrefix(digest, "sha256:"); digest != "" {
		found.Digest = "sha256:" + strings.ToLower(digest)
	}

	return found, nil
}

// get gets a file. The password is for the repository's own server alone.
func (r repository) get(ctx context.Context, location *url.URL, limit int64) ([]byte, error) {
	asked := request{what: "getting " + location.Redacted(), login: r.source.CredentialsSecretName, ca: r.source.CASecretName}
	get, err := http.NewRequestWithContext(ctx, http.MethodGet, location.String(), nil)
	if err != nil {
		return nil, asked.failure(err)
	}
	if r.access.Username != "" && isSameServer(location, r.base) {
		get.SetBasicAuth(r.access.Username, r.access.Password)
	}
	response, err := r.client.Do(get)
	if err != nil {
		return nil, asked.failure(err)
	}
	defer func() { _ = response.Body.Close() }()
	if err := asked.status(response.StatusCode); err != nil {
		return nil, err
	}

	return asked.read(response.Body, limit)
}
