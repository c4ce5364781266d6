package e2e

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/test/stack/demo"
)

// step does one thing and notes for the table at the end what came of it, and how
// long it took.
func step(ctx context.Context, name string, do func(context.Context) string) {
	GinkgoHelper()
	By(name)
	start := time.Now()
	outcome := do(ctx)
	note(demo.Result{Step: name, Outcome: outcome, Took: time.Since(start)})
}

// note adds to the table at the end.
func note(results ...demo.Result) {
	for _, result := range results {
		fmt.Fprintf(GinkgoWriter, "%s: %s (%.1f s)\n", result.Step, result.Outcome, result.Took.Seconds())
		world.results = append(world.results, result)
	}
}

// memoryOf is how much memory a node uses.
type memoryOf struct {
	node  string
	bytes int64
}

// containerStats are what "crictl stats --output json" prints, as far as it is read.
type containerStats struct {
	Stats []struct {
		Attributes struct {
			Labels map[string]string `json:"labels"`
		} `json:"attributes"`
		Memory struct {
			WorkingSetBytes struct {
				Value string `json:"value"`
			} `json:"workingSetBytes"`
		} `json:"memory"`
	} `json:"stats"`
}

// readMemory finds the Pods of a namespace in what crictl prints.
func readMemory(printed []byte, namespace string) ([]memoryOf, error) {
	stats := &containerStats{}
	if err := json.Unmarshal(printed, stats); err != nil {
		return nil, fmt.Errorf("reading the memory of Pods: %w", err)
	}
	var found []memoryOf
	for _, container := range stats.Stats {
		labels := container.Attributes.Labels
		if labels["io.kubernetes.pod.namespace"] != namespace {
			continue
		}
		bytes, err := strconv.ParseInt(container.Memory.WorkingSetBytes.Value, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("reading the memory of Pod %s: %w", labels["io.kubernetes.pod.name"], err)
		}
		found = append(found, memoryOf{labels["io.kubernetes.pod.name"], bytes})
	}
	slices.SortFunc(found, func(a, b memoryOf) int { return cmp.Compare(a.node, b.node) })
	return found, nil
}

// readUsage reads what "docker stats" prints of the memory of a container, such as
// "61.2MiB / 23.4GiB".
func readUsage(printed string) (int64, error) {
	used, _, _ := strings.Cut(strings.TrimSpace(printed), " / ")
	quantity, err := resource.ParseQuantity(strings.TrimSuffix(used, "B"))
	if err != nil {
		return 0, fmt.Errorf("reading the memory of a container of %q: %w", printed, err)
	}
	return quantity.Value(), nil
}

// memoryOfHosts is how much memory the machines behind the hosts of a namespace use.
func memoryOfHosts(ctx context.Context, namespace string) []memoryOf {
	GinkgoHelper()
	hosts := &infrav1.TalosHostList{}
	Expect(world.client.List(ctx, hosts, client.InNamespace(namespace))).To(Succeed())
	var found []memoryOf
	for i := range hosts.Items {
		container := world.nodes.Network.Name + "-" + hosts.Items[i].Name
		printed, err := world.nodes.Docker.Docker(ctx, "stats", "--no-stream", "--format", "{{.MemUsage}}", container)
		Expect(err).NotTo(HaveOccurred())
		used, err := readUsage(string(printed))
		Expect(err).NotTo(HaveOccurred())
		found = append(found, memoryOf{hosts.Items[i].Spec.ConsumerRef.Name, used})
	}
	slices.SortFunc(found, func(a, b memoryOf) int { return cmp.Compare(a.node, b.node) })
	return found
}

// printTables prints what the steps took and the nodes used, and keeps it.
func printTables() {
	if world.artifacts == "" {
		return
	}
	file, err := os.Create(filepath.Join(world.artifacts, "steps.txt"))
	Expect(err).NotTo(HaveOccurred())
	out := io.MultiWriter(GinkgoWriter, file)
	demo.Table(out, world.results)
	printMemory(out, world.memory)
	Expect(file.Close()).To(Succeed())
}

func printMemory(out io.Writer, nodes []memoryOf) {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "\nNODE\tMEMORY")
	const mebi = 1 << 20
	for _, node := range nodes {
		fmt.Fprintf(table, "%s\t%d MiB\n", node.node, node.bytes/mebi)
	}
	_ = table.Flush()
}

func TestReadMemory(t *testing.T) {
	const printed = `{"stats": [
		{"attributes": {"labels": {"io.kubernetes.pod.name": "b", "io.kubernetes.pod.namespace": "pods"}}, "memory": {"workingSetBytes": {"value": "104857600"}}},
		{"attributes": {"labels": {"io.kubernetes.pod.name": "manager", "io.kubernetes.pod.namespace": "other"}}, "memory": {"workingSetBytes": {"value": "1"}}},
		{"attributes": {"labels": {"io.kubernetes.pod.name": "a", "io.kubernetes.pod.namespace": "pods"}}, "memory": {"workingSetBytes": {"value": "419430400"}}}]}`
	g := NewWithT(t)
	g.Expect(readMemory([]byte(printed), "pods")).To(Equal([]memoryOf{{"a", 400 << 20}, {"b", 100 << 20}}))
	_, err := readMemory([]byte(`{"stats": [{"attributes": {"labels": {"io.kubernetes.pod.namespace": "pods"}}}]}`), "pods")
	g.Expect(err).To(MatchError(ContainSubstring("reading the memory of Pod")))
}

func TestReadUsage(t *testing.T) {
	for printed, want := range map[string]int64{
		"512KiB / 23.4GiB\n": 512 << 10, "61.5MiB / 23.4GiB": 61.5 * (1 << 20), "1.5GiB / 23.4GiB": 3 << 29, "0B / 0B": 0,
	} {
		NewWithT(t).Expect(readUsage(printed)).To(Equal(want), printed)
	}
	_, err := readUsage("-- / --")
	NewWithT(t).Expect(err).To(MatchError(ContainSubstring("reading the memory of a container")))
}
