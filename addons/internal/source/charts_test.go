package source

import (
	"context"
	"errors"
	"sync"
	"testing"

	. "github.com/onsi/gomega"

	addonv1 "github.com/capi-talos/capi-talos/addons/api/v1alpha1"
)

// shelf is a source with one chart.
type shelf struct {
	mu             sync.Mutex
	content        []byte
	finds, fetches int
	untold         bool
	asked          []addonv1.AddonSource
}

func (s *shelf) Find(_ context.Context, source addonv1.AddonSource, _ Access) (Found, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.finds++
	s.asked = append(s.asked, source)
	found := Found{Version: "1.0.0", Digest: DigestOf(s.content), fetch: func(context.Context) ([]byte, error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.fetches++
		return s.content, nil
	}}
	if s.untold {
		found.Digest = ""
	}

	return found, nil
}

func says(content []byte) (Metadata, error) {
	if len(content) == 0 {
		return Metadata{}, errors.New("it is empty")
	}

	return Metadata{Name: "demo", Version: "1.0.0", AppVersion: "7"}, nil
}

func TestAnArchiveIsFetchedOnce(t *testing.T) {
	g, s := NewWithT(t), &shelf{content: []byte("one")}
	charts, source := NewCharts(s, says), addonv1.AddonSource{Repository: addonv1.RepositorySource{URL: "https://example.com", Chart: "demo", Version: "1.x"}}
	chart, err := charts.Resolve(t.Context(), source, Access{}, addonv1.ChartStatus{})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(chart).To(Equal(addonv1.ChartStatus{Name: "demo", Version: "1.0.0", AppVersion: "7", Digest: DigestOf([]byte("one"))}))
	again, err := charts.Resolve(t.Context(), source, Access{}, chart)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(again).To(Equal(chart))
	g.Expect(s.fetches).To(Equal(1))

	var clusters sync.WaitGroup
	for range 20 {
		clusters.Go(func() {
			content, err := charts.Archive(t.Context(), source, Access{}, chart)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(string(content)).To(Equal("one"))
		})
	}
	clusters.Wait()
	g.Expect(s.fetches).To(Equal(1))

	// Another process has none.
	charts = NewCharts(s, says)
	for range 20 {
		clusters.Go(func() {
			same := *source.DeepCopy()
			same.IntervalSeconds = new(int32)
			_, err := charts.Archive(t.Context(), same, Access{}, chart)
			g.Expect(err).NotTo(HaveOccurred())
		})
	}
	clusters.Wait()
	g.Expect(s.fetches).To(Equal(2))
	g.Expect(s.asked[len(s.asked)-1].Repository.Version).To(Equal("1.0.0"), "that version is wanted, and no newer one")
}

func TestAnArchiveThatWasChangedIsNoticed(t *testing.T) {
	g, s := NewWithT(t), &shelf{content: []byte("one"), untold: true}
	charts, source := NewCharts(s, says), addonv1.AddonSource{Registry: addonv1.RegistrySource{URL: "oci://example.com/demo"}}
	chart, err := charts.Resolve(t.Context(), source, Access{}, addonv1.ChartStatus{})
	g.Expect(err).NotTo(HaveOccurred())
	s.content = []byte("two")
	changed, err := charts.Resolve(t.Context(), source, Access{}, chart)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(changed.Digest).To(Equal(DigestOf([]byte("two"))))
	_, err = NewCharts(s, says).Archive(t.Context(), source, Access{}, chart)
	g.Expect(err).To(MatchError(ContainSubstring("another archive of version 1.0.0")))
	g.Expect(s.asked[len(s.asked)-1].Registry.Version).To(Equal("1.0.0"))
	g.Expect(s.asked[len(s.asked)-1].Repository).To(BeZero())
}

func TestOnlySoManyArchivesAreKept(t *testing.T) {
	g, charts := NewWithT(t), NewCharts(&shelf{}, says)
	var digests []string
	for i := range 6 {
		content := make([]byte, maxArchive)
		content[0] = byte(i)
		chart, err := charts.Take(content)
		g.Expect(err).NotTo(HaveOccurred())
		digests = append(digests, chart.Digest)
		g.Expect(charts.find(digests[0]) != nil).To(Equal(true), "it is used all the time")
	}
	g.Expect(charts.kept).To(HaveLen(4))
	g.Expect(charts.find(digests[1])).To(BeNil())
	g.Expect(charts.find(digests[5])).NotTo(BeNil())
	_, err := charts.Take(make([]byte, maxArchive+1))
	g.Expect(err).To(HaveField("Reason", addonv1.ChartInvalidReason))
	_, err = charts.Take(nil)
	g.Expect(err).To(HaveField("Reason", addonv1.ChartInvalidReason))
}
