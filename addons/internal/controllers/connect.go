package controllers

import (
	"context"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/cluster-api/controllers/clustercache"

	addonv1 "github.com/capi-talos/capi-talos/addons/api/v1alpha1"
	"github.com/capi-talos/capi-talos/addons/internal/drift"
	"github.com/capi-talos/capi-talos/addons/internal/helm"
	"github.com/capi-talos/capi-talos/addons/internal/release"
)

// releaseObjects are those of a release in a workload cluster.
type releaseObjects struct {
	drift.Objects

	helm *helm.Client
}

// HasNamespace implements release.Objects.
func (o releaseObjects) HasNamespace(ctx context.Context, name string) (bool, error) {
	return o.helm.HasNamespace(ctx, name)
}

// Waiting implements release.Objects.
func (o releaseObjects) Waiting(ctx context.Context, content release.Content) (string, error) {
	return o.helm.Waiting(ctx, content.Target)
}

// ConnectBy connects to workload clusters as Cluster API's own controllers do.
func ConnectBy(cache clustercache.ClusterCache) Connect {
	return func(ctx context.Context, cluster types.NamespacedName, ignore []addonv1.DriftIgnoreRule) (Connection, error) {
		config, err := cache.GetRESTConfig(ctx, cluster)
		if err != nil {
			return Connection{}, err
		}
		live, err := cache.GetUncachedClient(ctx, cluster)
		if err != nil {
			return Connection{}, err
		}
		client := helm.New(config, live)

		return Connection{Helm: client, Objects: releaseObjects{Objects: drift.Objects{Client: live, Ignore: ignore}, helm: client}}, nil
	}
}
