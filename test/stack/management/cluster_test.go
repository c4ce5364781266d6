package management_test

import (
	"context"
	"maps"
	"os"
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capi-talos/capi-talos/test/stack/management"
	"github.com/capi-talos/capi-talos/test/stack/parts"
)

// startCluster starts a control plane that is stopped when the test ends.
func startCluster(t *testing.T, built parts.Built) *management.Cluster {
	t.Helper()
	g := NewWithT(t)
	cluster, err := management.Start(t.Context(), management.Options{Dir: t.TempDir(), Built: built})
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { g.Expect(cluster.Stop(context.WithoutCancel(t.Context()))).To(Succeed()) })
	return cluster
}

func ensure(t *testing.T, names ...string) parts.Built {
	t.Helper()
	built, err := parts.Ensure(t.Context(), parts.Print(t.Output()), names...)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return built
}

func TestClusterServesKubernetes(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	cluster := startCluster(t, ensure(t, management.Parts()...))

	g.Expect(cluster.Client.Create(t.Context(), &corev1.ConfigMap{
		ObjectMeta: objectMeta("default", "hello"), Data: map[string]string{"a": "b"},
	})).To(Succeed())
	read := &corev1.ConfigMap{}
	g.Expect(cluster.Client.Get(t.Context(), client.ObjectKey{Namespace: "default", Name: "hello"}, read)).To(Succeed())
	g.Expect(read.Data).To(HaveKeyWithValue("a", "b"))
	g.Expect(cluster.Check()).To(Succeed())
	g.Expect(filepath.Join(cluster.LogDir(), "kube-apiserver.log")).To(BeARegularFile())

	g.Expect(cluster.Stop(t.Context())).To(Succeed())
	g.Expect(cluster.Client.Get(t.Context(), client.ObjectKey{Namespace: "default", Name: "hello"}, read)).NotTo(Succeed())
	g.Expect(cluster.Stop(t.Context())).To(Succeed(), "stopping twice is no error")
}

func TestClustersLiveSideBySide(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	built := ensure(t, management.Parts()...)
	first, second := startCluster(t, built), startCluster(t, built)

	g.Expect(first.Client.Create(t.Context(), &corev1.Namespace{ObjectMeta: objectMeta("", "only-here")})).To(Succeed())
	err := second.Client.Get(t.Context(), client.ObjectKey{Name: "only-here"}, &corev1.Namespace{})
	g.Expect(client.IgnoreNotFound(err)).To(Succeed())
	g.Expect(err).To(HaveOccurred())
}

func TestStartReportsWhyAProcessEnded(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	built := ensure(t, management.Parts()...)
	broken := maps.Clone(built)
	broken["kube-apiserver"] = t.TempDir()
	g.Expect(os.WriteFile(broken.Path("kube-apiserver"), []byte("#!/bin/sh\necho cannot go on; exit 3\n"), 0o755)).To(Succeed())

	_, err := management.Start(t.Context(), management.Options{Dir: t.TempDir(), Built: broken})
	g.Expect(err).To(MatchError(And(ContainSubstring("kube-apiserver ended by itself: exit status 3"), ContainSubstring("cannot go on"))))
}
