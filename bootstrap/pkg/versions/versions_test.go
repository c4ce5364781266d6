package versions_test

import (
	"testing"

	. "github.com/onsi/gomega"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/versions"
)

func TestSupports(t *testing.T) {
	for name, tc := range map[string]struct {
		talos, kubernetes string
		want              string // Part of the error; empty when supported.
	}{
		"a version of the release":      {"v1.13.9", "v1.36.3", ""},
		"a version that is too new":     {"v1.13.9", "v1.40.0", "runs v1.31 to v1.36"},
		"a version that is too old":     {"v1.13.9", "v1.20.0", "runs v1.31 to v1.36"},
		"a release that is not known":   {"v9.9.9", "v1.20.0", ""},
		"a release that is no version":  {"latest", "v1.20.0", ""},
		"a version that is no version":  {"v1.13.9", "newest", ""},
		"a release without a patch":     {"v1.12.0", "v1.36.0", "Talos v1.12.0"},
		"a pre-release of Kubernetes":   {"v1.13.9", "v1.36.0-rc.1", ""},
		"a version with build metadata": {"v1.13.9", "v1.36.3+vendor.1", ""},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			err := versions.Supports(tc.talos, tc.kubernetes)
			g.Expect(versions.IsSupported(tc.talos, tc.kubernetes)).To(Equal(tc.want == ""))
			if tc.want == "" {
				g.Expect(err).NotTo(HaveOccurred())
				return
			}
			g.Expect(err).To(MatchError(versions.ErrUnsupported))
			g.Expect(err).To(MatchError(ContainSubstring(tc.want)))
		})
	}
}

// TestAVersionThatIsSupportedIsJudgedCheaply: it is asked for each host of each claim, and
// the range of the release is not needed.
func TestAVersionThatIsSupportedIsJudgedCheaply(t *testing.T) {
	allocations := testing.AllocsPerRun(10, func() { _ = versions.IsSupported("v1.13.9", "v1.36.3") })
	refused := testing.AllocsPerRun(10, func() { _ = versions.Supports("v1.13.9", "v1.40.0") })
	NewWithT(t).Expect(allocations).To(BeNumerically("<", refused/10))
}

func TestCheckChange(t *testing.T) {
	for name, tc := range map[string]struct {
		old, running, new string
		warning, want     string
	}{
		"a later patch":                               {"v1.35.1", "v1.35.1", "v1.35.2", "", ""},
		"the next minor":                              {"v1.35.1", "v1.35.1", "v1.36.0", "", ""},
		"a minor skipped":                             {"v1.34.1", "v1.34.1", "v1.36.0", "", "use a version of v1.34 or v1.35"},
		"a minor skipped by what still runs":          {"v1.35.1", "v1.34.1", "v1.36.0", "", "machines run v1.34.1"},
		"the same minor again while the former runs":  {"v1.35.1", "v1.34.1", "v1.35.2", "", ""},
		"a running version that is later counts not":  {"v1.34.1", "v1.35.1", "v1.36.0", "", "must not skip"},
		"an earlier minor":                            {"v1.35.1", "v1.35.1", "v1.34.9", "", "use v1.35.1 or later"},
		"an earlier minor while the former runs":      {"v1.35.1", "v1.34.1", "v1.34.1", "", "must not go back"},
		"an earlier patch":                            {"v1.35.2", "v1.35.2", "v1.35.1", "version v1.35.1 is earlier than v1.35.2", ""},
		"another major":                               {"v1.35.2", "", "v2.0.0", "", "must not go back"},
		"the same version":                            {"v1.35.2", "v1.35.2", "v1.35.2", "", ""},
		"no machine runs":                             {"v1.35.2", "", "v1.36.2", "", ""},
		"a version that is none is judged by another": {"v1.35.2", "", "next", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			warning, err := versions.CheckChange(tc.old, tc.running, tc.new)
			g.Expect(warning).To(Equal(tc.warning))
			if tc.want == "" {
				g.Expect(err).NotTo(HaveOccurred())
				return
			}
			g.Expect(err).To(MatchError(ContainSubstring(tc.want)))
		})
	}
}
