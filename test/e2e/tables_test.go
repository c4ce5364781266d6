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
	"testing"
	"text/tabwriter"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

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
