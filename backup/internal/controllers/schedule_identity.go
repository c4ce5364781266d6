package controllers

import (
	"context"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	backupv1 "github.com/capi-talos/capi-talos/backup/api/v1alpha1"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/secrets"
)

// identities are those of clusters, as their Secrets have them. To parse a bundle takes
// long beside all else that is done about a Cluster, so that each version is parsed once.
type identities struct {
	mu    sync.Mutex
	known map[client.ObjectKey]identity
}

// identity is that of one version of a Secret.
type identity struct{ version, value string }

// of is the identity of a cluster; empty when its Secret is missing or invalid.
func (i *identities) of(ctx context.Context, reader client.Reader, cluster client.ObjectKey) (string, error) {
	stored := &corev1.Secret{}
	key := client.ObjectKey{Namespace: cluster.Namespace, Name: secrets.BundleName(cluster.Name)}
	if err := reader.Get(ctx, key, stored); err != nil {
		if client.IgnoreNotFound(err) == nil {
			return "", nil
		}

		return "", fmt.Errorf("reading Secret %s: %w", key, err)
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	version := string(stored.UID) + "/" + stored.ResourceVersion
	if found, ok := i.known[cluster]; ok && found.version == version {
		return found.value, nil
	}
	found := identity{version: version}
	if bundle, err := secrets.ParseBundle(stored.Data[secrets.BundleKey]); err == nil {
		found.value = identityOf(bundle)
	}
	if i.known == nil {
		i.known = map[client.ObjectKey]identity{}
	}
	i.known[cluster] = found

	return found.value, nil
}

// mayBeOf reports whether a backup may be of a cluster with an identity, and not of a former
// one of its name. One that has stored nothing yet has none.
func mayBeOf(backup *backupv1.TalosEtcdBackup, identity string) bool {
	recorded := backup.Annotations[backupv1.ClusterIdentityAnnotation]

	return recorded == "" || recorded == identity
}
