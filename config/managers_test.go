package config

import (
	"fmt"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/yaml"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
	"github.com/capi-talos/capi-talos/test/support/providers"
)

// manager is what is installed of one of our managers.
type manager struct {
	folder, policy string
	// callsTalos reports whether it connects to machines.
	callsTalos bool
}

func managers(g Gomega) []manager {
	ours, err := providers.Read("..")
	g.Expect(err).NotTo(HaveOccurred())
	all := make([]manager, 0, len(ours))
	for _, provider := range ours {
		door := read(g, provider.Folder+"/setup/setup.go")
		all = append(all, manager{folder: provider.Folder, policy: provider.Name, callsTalos: strings.Contains(door, "Dialer talosclient.Dialer")})
	}

	return all
}

// manifest is the object in a file, its path as seen from the folder config.
func manifest[T any](g Gomega, path string) *T {
	object := new(T)
	g.Expect(yaml.UnmarshalStrict([]byte(read(g, "config/"+path)), object)).To(Succeed(), path)

	return object
}

// TestManagersProtectTheirDiagnostics: they ask the API server who scrapes them, and
// whether that is allowed.
func TestManagersProtectTheirDiagnostics(t *testing.T) {
	for _, of := range managers(NewWithT(t)) {
		t.Run(of.folder, func(t *testing.T) {
			g := NewWithT(t)
			args := manifest[appsv1.Deployment](g, of.folder+"/manager/manager.yaml").Spec.Template.Spec.Containers[0].Args
			g.Expect(args).To(ContainElement("--diagnostics-address=:8443"))
			g.Expect(args).NotTo(ContainElement(HavePrefix("--insecure-diagnostics")))
			g.Expect(args).NotTo(ContainElement(HavePrefix("--profiler-address")))
			role := manifest[rbacv1.ClusterRole](g, of.folder+"/rbac/role.yaml")
			for group, resource := range map[string]string{"authentication.k8s.io": "tokenreviews", "authorization.k8s.io": "subjectaccessreviews"} {
				g.Expect(role.Rules).To(ContainElement(rbacv1.PolicyRule{
					APIGroups: []string{group}, Resources: []string{resource}, Verbs: []string{"create"},
				}))
			}
		})
	}
}

// TestNetworkPoliciesFitTheManagers: each policy is for the Pods of one manager, lets
// in what that listens for and nothing else, and lets it out to what it calls.
func TestNetworkPoliciesFitTheManagers(t *testing.T) {
	listed := manifest[struct {
		APIVersion string   `json:"apiVersion"`
		Kind       string   `json:"kind"`
		Resources  []string `json:"resources"`
	}](NewWithT(t), "network-policy/kustomization.yaml")
	var files []string
	for _, of := range managers(NewWithT(t)) {
		files = append(files, of.policy+".yaml")
		t.Run(of.folder, func(t *testing.T) {
			g := NewWithT(t)
			policy := manifest[networkingv1.NetworkPolicy](g, "network-policy/"+of.policy+".yaml")
			deployment := manifest[appsv1.Deployment](g, of.folder+"/manager/manager.yaml")
			g.Expect(policy.Namespace).To(Equal(deployment.Namespace))
			g.Expect(policy.Spec.PodSelector.MatchLabels).To(Equal(deployment.Spec.Template.Labels))
			g.Expect(policy.Spec.PolicyTypes).To(ConsistOf(networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress))

			var in, out, listens []string
			for _, rule := range policy.Spec.Ingress {
				in = append(in, portsOf(rule.Ports)...)
			}
			for _, port := range deployment.Spec.Template.Spec.Containers[0].Ports {
				listens = append(listens, fmt.Sprintf("TCP %d", port.ContainerPort))
			}
			g.Expect(in).To(ConsistOf(listens))

			for _, rule := range policy.Spec.Egress {
				out = append(out, portsOf(rule.Ports)...)
			}
			calls := []string{"UDP 53", "TCP 53", "TCP 443", "TCP 6443"}
			if of.callsTalos {
				calls = append(calls, fmt.Sprintf("TCP %d", talosclient.Port))
			}
			g.Expect(out).To(ConsistOf(calls))
		})
	}
	NewWithT(t).Expect(listed.Resources).To(ConsistOf(files))
}

// The network of a cluster takes a moment to learn where the webhook of a Pod is
// that has just become ready.
func TestManagersAreAvailableOnceTheirWebhooksCanBeReached(t *testing.T) {
	for _, of := range managers(NewWithT(t)) {
		NewWithT(t).Expect(manifest[appsv1.Deployment](NewWithT(t), of.folder+"/manager/manager.yaml").Spec.MinReadySeconds).To(BeNumerically(">", 1), of.folder)
	}
}

func portsOf(ports []networkingv1.NetworkPolicyPort) []string {
	names := make([]string, 0, len(ports))
	for _, port := range ports {
		names = append(names, string(*port.Protocol)+" "+port.Port.String())
	}

	return names
}
