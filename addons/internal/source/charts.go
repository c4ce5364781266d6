package source

import (
	"context"
	"crypto/sha256"
	"fmt"
	"slices"
	"sync"

	"golang.org/x/sync/singleflight"

	addonv1 "github.com/capi-talos/capi-talos/addons/api/v1alpha1"
)

const (
	// maxKept is how many bytes of archives are kept in memory.
	maxKept = 64 << 20
	// maxName and maxVersion are how long the name and the versions of a chart may be: the
	// status of an add-on takes no more.
	maxName, maxVersion = 250, 128
)

// Metadata is what a chart says of itself.
type Metadata struct {
	Name, Version, AppVersion string
}

// Finder finds charts. Network is one.
type Finder interface {
	Find(ctx context.Context, source addonv1.AddonSource, access Access) (Found, error)
}

// Charts are the charts of sources. An archive is fetched once, and not once for each
// cluster; the last ones are kept.
type Charts struct {
	finder Finder
	// inspect reads what an archive says of itself, and refuses what is no chart.
	inspect func(archive []byte) (Metadata, error)

	// fetching has others wait that want the same archive.
	fetching singleflight.Group

	mu   sync.Mutex
	kept []archive
}

// archive is the archive of a chart.
type archive struct {
	digest  string
	content []byte
}

// NewCharts returns charts that are found by finder.
func NewCharts(finder Finder, inspect func(archive []byte) (Metadata, error)) *Charts {
	return &Charts{finder: finder, inspect: inspect}
}

// Resolve finds the newest chart that a source allows. An archive whose digest is that of
// known is not fetched again.
func (c *Charts) Resolve(ctx context.Context, source addonv1.AddonSource, access Access, known addonv1.ChartStatus) (addonv1.ChartStatus, error) {
	found, err := c.finder.Find(ctx, source, access)
	if err != nil {
		return addonv1.ChartStatus{}, err
	}
	if found.Digest != "" && found.Digest == known.Digest && found.Version == known.Version {
		return known, nil
	}
	content, err := found.Fetch(ctx)
	if err != nil {
		return addonv1.ChartStatus{}, err
	}

	return c.Take(content)
}

// Take keeps an archive, and says what it is.
func (c *Charts) Take(content []byte) (addonv1.ChartStatus, error) {
	if len(content) > maxArchive {
		return addonv1.ChartStatus{}, failf(addonv1.ChartInvalidReason, "the archive is larger than %d MiB", maxArchive>>20)
	}
	said, err := c.inspect(content)
	if err != nil {
		return addonv1.ChartStatus{}, failf(addonv1.ChartInvalidReason, "%v", err)
	}
	if len(said.Name) > maxName || len(said.Version) > maxVersion || len(said.AppVersion) > maxVersion {
		return addonv1.ChartStatus{}, failf(addonv1.ChartInvalidReason, "its name is longer than %d characters, or a version than %d", maxName, maxVersion)
	}
	made := addonv1.ChartStatus{Name: said.Name, Version: said.Version, AppVersion: said.AppVersion, Digest: DigestOf(content)}
	c.keep(archive{made.Digest, content})

	return made, nil
}

// Archive returns the archive of a chart that a source was resolved to.
func (c *Charts) Archive(ctx context.Context, source addonv1.AddonSource, access Access, chart addonv1.ChartStatus) ([]byte, error) {
	// Those who have the same chart from elsewhere, or by other credentials, do not wait for
	// each other: one's server may hang, and one's errors are not the other's.
	source.IntervalSeconds = nil
	flight := fmt.Sprintf("%s %x", chart.Digest, sha256.Sum256(fmt.Appendf(nil, "%#v %#v", source, access)))
	content, err, _ := c.fetching.Do(flight, func() (any, error) {
		if kept := c.find(chart.Digest); kept != nil {
			return kept, nil
		}
		return c.fetch(ctx, source, access, chart)
	})
	if err != nil {
		return nil, err
	}

	return content.([]byte), nil //nolint:forcetypeassert // Both are.
}

// fetch fetches that archive, and no newer one.
func (c *Charts) fetch(ctx context.Context, source addonv1.AddonSource, access Access, chart addonv1.ChartStatus) ([]byte, error) {
	exact := *source.DeepCopy()
	exact.Repository.Version, exact.Registry.Version = versionOf(source.Repository != addonv1.RepositorySource{}, chart), versionOf(source.Registry != addonv1.RegistrySource{}, chart)
	found, err := c.finder.Find(ctx, exact, access)
	if err != nil {
		return nil, err
	}
	content, err := found.Fetch(ctx)
	if err != nil {
		return nil, err
	}
	if digest := DigestOf(content); digest != chart.Digest {
		return nil, failf(addonv1.ChartInvalidReason, "the source has another archive of version %s by now, with the digest %s and not %s", chart.Version, digest, chart.Digest)
	}
	c.keep(archive{chart.Digest, content})

	return content, nil
}

func versionOf(isSource bool, chart addonv1.ChartStatus) string {
	if !isSource {
		return ""
	}

	return chart.Version
}

func (c *Charts) find(digest string) []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	i := slices.IndexFunc(c.kept, func(kept archive) bool { return kept.digest == digest })
	if i < 0 {
		return nil
	}
	found := c.kept[i]
	c.kept = append(slices.Delete(c.kept, i, i+1), found)

	return found.content
}

// keep keeps an archive, and lets those go that were not used for the longest time.
func (c *Charts) keep(made archive) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.kept = append(slices.DeleteFunc(c.kept, func(kept archive) bool { return kept.digest == made.digest }), made)
	total := 0
	for i, one := range slices.Backward(c.kept) {
		if total += len(one.content); total > maxKept && i < len(c.kept)-1 {
			c.kept = slices.Clone(c.kept[i+1:])
			return
		}
	}
}
