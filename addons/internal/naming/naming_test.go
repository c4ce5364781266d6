package naming

import (
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/util/validation"
)

func TestNamesAreTheSameForTheSameAndNoOther(t *testing.T) {
	g := NewWithT(t)
	g.Expect(Release("metrics", "blue")).To(And(HavePrefix("metrics-blue-"), Equal(Release("metrics", "blue"))))
	g.Expect(Release("a", "b-c")).NotTo(Equal(Release("a-b", "c")))
	g.Expect(Owner("ns", "a", "b")).NotTo(Equal(Owner("ns", "ab", "")))
	for _, length := range []int{1, 180, 181, 182, 253} {
		addon := strings.Repeat("x", length-1) + "."
		name := Release(strings.TrimRight(addon, ".")+"y", strings.Repeat("c", 63))
		g.Expect(validation.IsDNS1123Subdomain(name)).To(BeEmpty(), name)
		for _, value := range Labels(strings.Repeat("x", length), strings.Repeat("c", 63)) {
			g.Expect(validation.IsValidLabelValue(value)).To(BeEmpty())
		}
	}
	g.Expect(validation.IsValidLabelValue(Owner("ns", "c", "a"))).To(BeEmpty())
}
