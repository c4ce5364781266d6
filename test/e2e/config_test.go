package e2e

import (
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	upstream "sigs.k8s.io/cluster-api/test/e2e"

	"github.com/capi-talos/capi-talos/test/stack/management"
	"github.com/capi-talos/capi-talos/test/stack/parts"
	"github.com/capi-talos/capi-talos/test/stack/pods"
)

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

func TestTheTopologyTemplateIsAmended(t *testing.T) {
	g := NewWithT(t)
	text, err := os.ReadFile(filepath.Join("config", topologyTemplate))
	g.Expect(err).NotTo(HaveOccurred())
	amended, err := pods.Surroundings{
		TalosVersion: parts.TalosVersion, TalosImage: parts.TalosImage,
		Patch: func(network netip.Prefix) (string, error) { return "network: " + network.String(), nil },
	}.Amend(text)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(string(amended)).To(And(
		ContainSubstring("replicas: ${WORKER_MACHINE_COUNT}\n"), ContainSubstring("version: ${KUBERNETES_VERSION}\n"),
		ContainSubstring("namespace: ${CLUSTER_CLASS_NAMESPACE:=${NAMESPACE}}\n"),
	))
	objects, err := management.Objects(amended)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(objects).To(HaveLen(1))
	variables, _, err := unstructured.NestedSlice(objects[0].Object, "spec", "topology", "variables")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(variables).To(ConsistOf(
		HaveKeyWithValue("name", "talosVersion"), HaveKeyWithValue("name", "talosRelease"),
		HaveKeyWithValue("name", "controlPlanePatches"), HaveKeyWithValue("name", "workerPatches"),
	))
	class, _, err := unstructured.NestedString(objects[0].Object, "spec", "topology", "classRef", "name")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(class).To(Equal("talos-container"))
}
