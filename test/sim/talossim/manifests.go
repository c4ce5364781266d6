package talossim

import (
	"context"

	"github.com/cosi-project/runtime/pkg/state"
	"github.com/siderolabs/talos/pkg/machinery/resources/k8s"
)

// Controllers of Talos that make manifests: those of Talos itself, and those of the
// user (internal/app/machined/pkg/controllers/k8s/{manifest,extra_manifest}.go).
const (
	builtInManifests = "k8s.ManifestController"
	extraManifests   = "k8s.ExtraManifestController"
)

// setManifests tells what a control plane node brings into its cluster, as far as it
// matters who renders it, and for which version.
func (r *resources) setManifests(ctx context.Context, version string) {
	object := func(apiVersion, kind, name string) map[string]any {
		return map[string]any{"apiVersion": apiVersion, "kind": kind, "metadata": map[string]any{"namespace": "kube-system", "name": name}}
	}
	proxy := object("apps/v1", "DaemonSet", "kube-proxy")
	proxy["spec"] = map[string]any{
		"revisionHistoryLimit": 3,
		"template": map[string]any{"spec": map[string]any{
			"containers": []any{map[string]any{"name": "kube-proxy", "image": "registry.k8s.io/kube-proxy:" + version}},
		}},
	}
	for _, made := range []struct {
		id, owner string
		object    map[string]any
	}{
		{"00-kubelet-bootstrapping-token", builtInManifests, object("v1", "Secret", "bootstrap-token-abcdef")},
		{"10-kube-proxy", builtInManifests, proxy},
		{"99-of-the-user", extraManifests, object("v1", "ConfigMap", "of-the-user")},
	} {
		manifest := k8s.NewManifest(k8s.ControlPlaneNamespaceName, made.id)
		manifest.TypedSpec().Items = []k8s.SingleManifest{{Object: made.object}}
		r.putAs(ctx, made.owner, manifest)
	}
}

// putAs makes a resource of a controller, or replaces it.
func (r *resources) putAs(ctx context.Context, owner string, manifest *k8s.Manifest) {
	r.mu.Lock()
	defer r.mu.Unlock()
	present, err := r.state.Get(ctx, manifest.Metadata())
	if err != nil {
		_ = r.state.Create(ctx, manifest, state.WithCreateOwner(owner))
		return
	}
	manifest.Metadata().SetVersion(present.Metadata().Version())
	_ = r.state.Update(ctx, manifest, state.WithUpdateOwner(owner))
}
