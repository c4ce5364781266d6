package startup

import (
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/cluster-api/core/setup"
	"sigs.k8s.io/controller-runtime/pkg/cache"
)

// readSecrets are the name endings of the Secrets whose content our
// controllers read from the cache; of all others only the metadata is kept.
var readSecrets = []string{"-kubeconfig", "-ca", "-talos", "-talosconfig", "-talos-admin"}

// cacheOptions are Cluster API's own but for the Secrets whose data is kept, and for
// what a program says.
func cacheOptions(scheme *runtime.Scheme, program Program, opts *options) cache.Options {
	cached := setup.ManagerCacheOptions(scheme, program.Name, opts.namespace, opts.syncPeriod)
	for object, byObject := range cached.ByObject {
		if _, isSecret := object.(*corev1.Secret); isSecret {
			byObject.Transform = dropUnread
			cached.ByObject[object] = byObject
		}
	}
	maps.Copy(cached.ByObject, program.CacheByObject)
	return cached
}

func dropUnread(in any) (any, error) {
	secret, ok := in.(*corev1.Secret)
	if !ok {
		return in, nil
	}
	secret.SetManagedFields(nil)
	if !slices.ContainsFunc(readSecrets, func(ending string) bool { return strings.HasSuffix(secret.Name, ending) }) {
		secret.Data = nil
	}
	return in, nil
}
