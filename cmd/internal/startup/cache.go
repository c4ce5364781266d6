package startup

import (
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/cluster-api/core/setup"
	"sigs.k8s.io/cluster-api/util/secret"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/secretcache"
)

// cacheOptions are Cluster API's own but for the Secrets whose data is kept, and for
// what a program says.
func cacheOptions(scheme *runtime.Scheme, program Program, opts *options) cache.Options {
	kept := slices.Clone(program.CachedSecrets)
	if program.NeedsClusterCache {
		kept = append(kept, secret.Name("", secret.Kubeconfig))
	}
	cached := setup.ManagerCacheOptions(scheme, program.Name, opts.namespace, opts.syncPeriod)
	for object, byObject := range cached.ByObject {
		if _, isSecret := object.(*corev1.Secret); isSecret {
			byObject.Transform = secretcache.KeepData(kept)
			if program.WatchesSecrets {
				byObject.Label = nil
			}
			cached.ByObject[object] = byObject
		}
	}
	maps.Copy(cached.ByObject, program.CacheByObject)
	return cached
}

// newSecretClient returns a client that reads Secrets from the cache of the manager, and
// live where the cache lacks their data.
func newSecretClient(mgr ctrl.Manager) (client.Client, error) {
	cached, err := setup.CreateSecretCachingClient(mgr)
	if err != nil {
		return nil, fmt.Errorf("creating the client that caches Secrets: %w", err)
	}
	return secretcache.NewClient(cached, mgr.GetAPIReader()), nil
}
