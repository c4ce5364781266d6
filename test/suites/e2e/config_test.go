package e2e

import (
	"path/filepath"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	upstream "sigs.k8s.io/cluster-api/test/e2e"

	"github.com/capi-talos/capi-talos/test/stack/parts"
)

func TestTheFlavorsOfUpstreamsSpecsAreOurs(t *testing.T) {
	for _, flavor := range []string{podsFlavor, topologyFlavor} {
		NewWithT(t).Expect(filepath.Join("..", "..", "..", "templates", "cluster-template-"+flavor+".yaml")).To(BeARegularFile())
	}
}

func TestTheConfigurationHasWhatUpstreamAsksFor(t *testing.T) {
	g := NewWithT(t)
	config, err := readConfig()
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(config.Variables).To(HaveKeyWithValue(upstream.KubernetesVersion, parts.KubernetesVersion))
	g.Expect(config.Intervals).NotTo(BeEmpty())
	for name, pair := range config.Intervals {
		g.Expect(pair).To(HaveLen(2), name)
		for _, text := range pair {
			_, err := time.ParseDuration(text)
			g.Expect(err).NotTo(HaveOccurred(), name)
		}
	}
	for _, key := range []string{"wait-cluster", "wait-control-plane", "wait-worker-nodes", "wait-delete-cluster", "wait-machine-remediation", "wait-machine-upgrade"} {
		g.Expect(config.GetIntervals("any", key)).To(HaveLen(2), key)
	}
	for _, key := range []string{"wait-deployment-available", "wait-machine-deleted"} {
		g.Expect(config.GetIntervals("node-drain", key)).To(HaveLen(2), key)
	}
}
