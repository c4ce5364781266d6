package controllers

import (
	"testing"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	bootstrapv1 "github.com/capi-talos/capi-talos/bootstrap/api/v1beta1"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/configgen"
)

func (w *world) editCluster(edit func(*clusterv1.Cluster)) {
	w.t.Helper()
	cluster := &clusterv1.Cluster{}
	w.get(cluster, clusterName)
	edit(cluster)
	w.Expect(w.client.Update(w.t.Context(), cluster)).To(Succeed())
}

// networkWorld is a cluster with one machine, and makes a second one.
func networkWorld(t *testing.T, between func(*world), controlPlane bool) *world {
	t.Helper()
	cp, cpConfig := newMachine(cpName, true)
	w := newWorld(t, newCluster(), cp, cpConfig, usersBundle())
	w.settle(cpName)
	between(w)
	late, lateConfig := newMachine("one-late", controlPlane)
	w.create(late, lateConfig)
	w.settle(cpName, "one-late")

	return w
}

// Nodes of one cluster need the same networks.
func TestBadInputClusterNetworkChangedAfterTheFirstMachine(t *testing.T) {
	for name, tc := range map[string]struct {
		edit func(*clusterv1.ClusterNetwork)
		want string
	}{
		"pods":     {func(n *clusterv1.ClusterNetwork) { n.Pods.CIDRBlocks = []string{"10.51.0.0/16"} }, "spec.clusterNetwork.pods.cidrBlocks was 10.50.0.0/16 and is 10.51.0.0/16"},
		"services": {func(n *clusterv1.ClusterNetwork) { n.Services.CIDRBlocks = nil }, "spec.clusterNetwork.services.cidrBlocks was 10.60.0.0/16 and is 10.96.0.0/12"},
		"one more": {func(n *clusterv1.ClusterNetwork) {
			n.Services.CIDRBlocks = append(n.Services.CIDRBlocks, "fd00::/108")
		}, "services.cidrBlocks was 10.60.0.0/16 and is 10.60.0.0/16, fd00::/108"},
		"the domain": {func(n *clusterv1.ClusterNetwork) { n.ServiceDomain = "other.local" }, "spec.clusterNetwork.serviceDomain was test.local and is other.local"},
		"the port":   {func(n *clusterv1.ClusterNetwork) { n.APIServerPort = 0 }, "spec.clusterNetwork.apiServerPort was 7443 and is 6443"},
	} {
		for role, controlPlane := range map[string]bool{"control plane": true, "worker": false} {
			t.Run(name+", "+role, func(t *testing.T) {
				w := networkWorld(t, func(w *world) { w.editCluster(func(c *clusterv1.Cluster) { tc.edit(&c.Spec.ClusterNetwork) }) }, controlPlane)
				w.expectNoSecret("one-late")
				w.expect("one-late", "DataSecretAvailable", metav1.ConditionFalse, "ClusterNetworkChanged", tc.want)
				w.expect("one-late", "Ready", metav1.ConditionFalse, "ClusterNetworkChanged", "change it back")
				w.expect(cpName, "Ready", metav1.ConditionTrue, "", "")

				// The way back.
				w.editCluster(func(c *clusterv1.Cluster) { c.Spec.ClusterNetwork = newCluster().Spec.ClusterNetwork })
				w.settle("one-late")
				w.expect("one-late", "Ready", metav1.ConditionTrue, "", "")
			})
		}
	}
}

func TestAPersonMayLetNewMachinesHaveAnotherNetwork(t *testing.T) {
	w := networkWorld(t, func(w *world) {
		w.editCluster(func(c *clusterv1.Cluster) { c.Spec.ClusterNetwork.ServiceDomain = "other.local" })
	}, false)
	w.expect("one-late", "Ready", metav1.ConditionFalse, "ClusterNetworkChanged", "bootstrap.cluster.x-k8s.io/talos-allow-network-change")
	w.editCluster(func(c *clusterv1.Cluster) {
		c.Annotations = map[string]string{"bootstrap.cluster.x-k8s.io/talos-allow-network-change": ""}
	})
	w.settle(cpName, "one-late")
	w.expect("one-late", "Ready", metav1.ConditionTrue, "", "")
	w.Expect(loaded(w, "one-late").K8sNetworkConfig().DNSDomain()).To(Equal("other.local"))

	// It is the cluster's now.
	w.editCluster(func(c *clusterv1.Cluster) { c.Annotations = nil })
	later, laterConfig := newMachine("one-later", false)
	w.create(later, laterConfig)
	w.settle("one-later")
	w.expect("one-later", "Ready", metav1.ConditionTrue, "", "")
}

func TestANetworkThatMeansTheSameIsNoChange(t *testing.T) {
	w := networkWorld(t, func(w *world) {
		w.editCluster(func(c *clusterv1.Cluster) { c.Spec.ClusterNetwork.Pods.CIDRBlocks = []string{"10.50.0.0/16"} })
	}, true)
	w.expect("one-late", "Ready", metav1.ConditionTrue, "", "")

	// What is not stated is what Talos takes.
	cluster := newCluster()
	cluster.Spec.ClusterNetwork = clusterv1.ClusterNetwork{}
	cp, cpConfig := newMachine(cpName, true)
	w = newWorld(t, cluster, cp, cpConfig, usersBundle())
	w.settle(cpName)
	network := loaded(w, cpName).K8sNetworkConfig()
	w.editCluster(func(c *clusterv1.Cluster) {
		c.Spec.ClusterNetwork = clusterv1.ClusterNetwork{
			Pods:          clusterv1.NetworkRanges{CIDRBlocks: []string{network.PodCIDRs()[0].String()}},
			Services:      clusterv1.NetworkRanges{CIDRBlocks: []string{network.ServiceCIDRs()[0].String()}},
			ServiceDomain: network.DNSDomain(), APIServerPort: 6443,
		}
	})
	late, lateConfig := newMachine("one-late", false)
	w.create(late, lateConfig)
	w.settle("one-late")
	w.expect("one-late", "Ready", metav1.ConditionTrue, "", "")
}

func TestTheNetworkMayChangeBeforeTheFirstMachine(t *testing.T) {
	cluster := newCluster()
	cluster.Spec.ControlPlaneEndpoint = clusterv1.APIEndpoint{}
	cp, cpConfig := newMachine(cpName, true)
	w := newWorld(t, cluster, cp, cpConfig, usersCA())
	w.settle(cpName)
	w.editCluster(func(c *clusterv1.Cluster) {
		c.Spec.ClusterNetwork.ServiceDomain = "other.local"
		c.Spec.ControlPlaneEndpoint = newCluster().Spec.ControlPlaneEndpoint
	})
	w.settle(cpName)
	w.expect(cpName, "Ready", metav1.ConditionTrue, "", "")
	w.Expect(loaded(w, cpName).K8sNetworkConfig().DNSDomain()).To(Equal("other.local"))

	// That is the one with which it has begun.
	w.editCluster(func(c *clusterv1.Cluster) { c.Spec.ClusterNetwork.ServiceDomain = "third.local" })
	late, lateConfig := newMachine("one-late", true)
	w.create(late, lateConfig)
	w.settle("one-late")
	w.expect("one-late", "Ready", metav1.ConditionFalse, "ClusterNetworkChanged", "was other.local and is third.local")
}

// A complete configuration of the user has the networks that it has.
func TestACompleteConfigurationIsNotHeldForTheNetwork(t *testing.T) {
	cp, cpConfig := newMachine(cpName, true)
	w := newWorld(t, newCluster(), cp, cpConfig, usersBundle())
	w.settle(cpName)
	w.editCluster(func(c *clusterv1.Cluster) { c.Spec.ClusterNetwork.ServiceDomain = "other.local" })
	late, lateConfig := newMachine("one-late", false)
	lateConfig.Spec = bootstrapv1.TalosConfigSpec{GenerateType: bootstrapv1.GenerateTypeNone, TalosVersion: "v1.13", Data: renderedFor(t, configgen.RoleWorker, "")}
	w.create(late, lateConfig)
	w.settle("one-late")
	w.expect("one-late", "Ready", metav1.ConditionTrue, "", "")
}

// The record goes with the Secret of the CA, which a move takes along.
func TestAMovedClusterRemembersItsNetwork(t *testing.T) {
	w := networkWorld(t, func(w *world) {
		kept := []client.Object{w.secret("one-ca"), w.secret("one-talos"), w.secret(cpName)}
		w.deleteCluster()
		cluster, moved := newCluster(), "moved"
		cluster.UID = "moved-cluster"
		cluster.Spec.ClusterNetwork.ServiceDomain = "other.local"
		machine, config := newMachine(cpName, true)
		machine.Spec.Bootstrap.DataSecretName = &config.Name
		w.create(cluster, machine, config)
		for _, object := range kept {
			object.SetResourceVersion("")
			object.SetLabels(map[string]string{clusterv1.ClusterNameLabel: clusterName, moved: ""})
			_ = w.client.Delete(t.Context(), object)
			w.create(object)
		}
	}, true)
	w.expect("one-late", "Ready", metav1.ConditionFalse, "ClusterNetworkChanged", "was test.local and is other.local")
}
