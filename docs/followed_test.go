package docs

import (
	"os"
	"regexp"
	"testing"

	. "github.com/onsi/gomega"
	"sigs.k8s.io/yaml"

	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
)

// TestHostsAndClustersAreInOneNamespace: who copies the host of its page and the
// commands of the README gets both into the same namespace.
func TestHostsAndClustersAreInOneNamespace(t *testing.T) {
	g := NewWithT(t)
	page, err := os.ReadFile("hosts.md")
	g.Expect(err).NotTo(HaveOccurred())
	example := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindStringSubmatch(string(page))
	g.Expect(example).NotTo(BeNil())
	host := &infrav1.TalosHost{}
	g.Expect(yaml.UnmarshalStrict([]byte(example[1]), host)).To(Succeed())

	readme, err := os.ReadFile("../README.md")
	g.Expect(err).NotTo(HaveOccurred())
	generate := regexp.MustCompile(`clusterctl generate cluster (?:[^\n]*\\\n)*[^\n]*--flavor metal(?:[^\n]*\\\n)*[^\n]*`).FindString(string(readme))
	g.Expect(generate).NotTo(BeEmpty())
	target := ""
	if named := found(`--target-namespace[ =](\S+)`, generate); len(named) > 0 {
		target = named[0]
	}
	g.Expect(host.Namespace).To(Equal(target))
}

// TestHealthChecksTakeWhatTheAPIServerAnswers: Talos' API server answers 401 to who has
// no client certificate (TestOnlyAdministratorsAreLetIn, and the main job on real nodes).
func TestHealthChecksTakeWhatTheAPIServerAnswers(t *testing.T) {
	g := NewWithT(t)
	page, err := os.ReadFile("endpoint.md")
	g.Expect(err).NotTo(HaveOccurred())
	config := regexp.MustCompile("(?s)```haproxy\n(.*?)```").FindStringSubmatch(string(page))
	g.Expect(config).NotTo(BeNil())
	g.Expect(found(`http-check expect status (\d+)`, config[1])).To(Equal([]string{"401"}))
	g.Expect(found(`mode (\S+)`, config[1])).To(Equal([]string{"tcp"}), "TLS ends at the API server")
	g.Expect(config[1]).To(ContainSubstring("check-ssl verify none"))
}
