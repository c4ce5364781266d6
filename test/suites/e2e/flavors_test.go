package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/yaml"
)

const (
	// remediationFlavor is the template that upstream's MachineDeploymentRemediationSpec
	// asks for: it sets a condition of Nodes that no kubelet knows, and so none mends.
	remediationFlavor = "md-remediation"
	// badCondition is that condition; it is bad when it is False.
	badCondition = "e2e.remediation.condition"

	separator = "\n---\n"
)

// addRemediationFlavor adds it to all releases of a local repository: the template of
// clusters in Pods, with a MachineHealthCheck of workers alone.
func addRemediationFlavor(repository string) error {
	templates, err := filepath.Glob(filepath.Join(repository, "infrastructure-talos", "*", "cluster-template-"+podsFlavor+".yaml"))
	if err != nil {
		return fmt.Errorf("looking for the template of clusters in Pods: %w", err)
	}
	if len(templates) == 0 {
		return fmt.Errorf("looking for the template of clusters in Pods in %s: there is none", repository)
	}
	for _, file := range templates {
		template, err := os.ReadFile(file)
		if err != nil {
			return fmt.Errorf("reading a template: %w", err)
		}
		changed, err := remediate(string(template))
		if err != nil {
			return fmt.Errorf("changing template %s: %w", file, err)
		}
		if err := os.WriteFile(filepath.Join(filepath.Dir(file), "cluster-template-"+remediationFlavor+".yaml"), []byte(changed), 0o600); err != nil {
			return fmt.Errorf("writing a template: %w", err)
		}
	}
	return nil
}

// remediate makes the template of another one. Only the health checks are read: some
// of the rest is YAML only once its variables are filled in.
func remediate(template string) (string, error) {
	var documents []string
	checks := 0
	for document := range strings.SplitSeq("\n"+template, separator) {
		if !strings.Contains("\n"+document, "\nkind: MachineHealthCheck\n") {
			documents = append(documents, document)
			continue
		}
		check := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(document), &check.Object); err != nil {
			return "", fmt.Errorf("reading a MachineHealthCheck: %w", err)
		}
		selected, _, err := unstructured.NestedStringMap(check.Object, "spec", "selector", "matchLabels")
		if err != nil {
			return "", fmt.Errorf("reading a MachineHealthCheck: %w", err)
		}
		if _, controlPlane := selected[clusterv1.MachineControlPlaneLabel]; controlPlane {
			continue
		}
		bad := []any{map[string]any{"type": badCondition, "status": "False", "timeoutSeconds": int64(10)}}
		if err := unstructured.SetNestedSlice(check.Object, bad, "spec", "checks", "unhealthyNodeConditions"); err != nil {
			return "", fmt.Errorf("changing a MachineHealthCheck: %w", err)
		}
		text, err := yaml.Marshal(check.Object)
		if err != nil {
			return "", fmt.Errorf("writing a MachineHealthCheck: %w", err)
		}
		documents = append(documents, string(text))
		checks++
	}
	if checks != 1 {
		return "", fmt.Errorf("looking for the MachineHealthCheck of workers: there are %d", checks)
	}
	return strings.Join(documents, separator), nil
}

func TestTheRemediationFlavorReplacesWorkersForWhatNoKubeletMends(t *testing.T) {
	g := NewWithT(t)
	template, err := os.ReadFile(filepath.Join("..", "..", "..", "templates", "cluster-template-container.yaml"))
	g.Expect(err).NotTo(HaveOccurred())
	changed, err := remediate(string(template))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(changed).To(And(
		ContainSubstring("kind: TalosControlPlane\n"), ContainSubstring("storage: {${WORKER_STORAGE:=type: Ephemeral}}\n"),
		ContainSubstring("name: ${CLUSTER_NAME}-workers\n"),
	))
	var checks []string
	for document := range strings.SplitSeq(changed, separator) {
		if strings.Contains(document, "kind: MachineHealthCheck\n") {
			checks = append(checks, document)
		}
	}
	g.Expect(checks).To(HaveLen(1))
	check := &clusterv1.MachineHealthCheck{}
	g.Expect(yaml.UnmarshalStrict([]byte(checks[0]), check)).To(Succeed())
	g.Expect(check.Spec.Checks.UnhealthyNodeConditions).To(HaveExactElements(
		And(HaveField("Type", BeEquivalentTo(badCondition)), HaveField("Status", BeEquivalentTo("False")), HaveField("TimeoutSeconds", HaveValue(BeEquivalentTo(10)))),
	))
	g.Expect(check.Spec.Selector.MatchLabels).To(HaveKeyWithValue(clusterv1.MachineDeploymentNameLabel, "${CLUSTER_NAME}-workers"))
	_, err = remediate("kind: Cluster\n")
	g.Expect(err).To(MatchError(ContainSubstring("there are 0")))
}

func TestTheRemediationFlavorIsInEveryRelease(t *testing.T) {
	g := NewWithT(t)
	repository := t.TempDir()
	template, err := os.ReadFile(filepath.Join("..", "..", "..", "templates", "cluster-template-container.yaml"))
	g.Expect(err).NotTo(HaveOccurred())
	for _, version := range []string{"v0.1.0", "v0.2.0"} {
		folder := filepath.Join(repository, "infrastructure-talos", version)
		g.Expect(os.MkdirAll(folder, 0o755)).To(Succeed())
		g.Expect(os.WriteFile(filepath.Join(folder, "cluster-template-container.yaml"), template, 0o600)).To(Succeed())
	}
	g.Expect(addRemediationFlavor(repository)).To(Succeed())
	g.Expect(filepath.Glob(filepath.Join(repository, "*", "*", "cluster-template-md-remediation.yaml"))).To(HaveLen(2))
	g.Expect(addRemediationFlavor(t.TempDir())).To(MatchError(ContainSubstring("there is none")))
}
