// Package naming names what the provider makes: always the same for the same add-on and
// Cluster, so that nothing is made twice.
package naming

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"strings"

	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/labels/format"

	addonv1 "github.com/capi-talos/capi-talos/addons/api/v1alpha1"
	"github.com/capi-talos/capi-talos/addons/internal/release"
)

const (
	// maxName is how long the name of an object may be.
	maxName = 253
	// suffix is how many digits tell names apart that would be the same.
	suffix = 8
	// maxLabel is how many digits of a digest a label takes.
	maxLabel = 40
)

// digest is a digest of some texts, none of which runs into the next.
func digest(texts ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(texts, "\x00")))

	return hex.EncodeToString(sum[:])
}

// Release is the name of the TalosClusterAddonRelease of an add-on in a Cluster.
func Release(addon, cluster string) string {
	readable := addon + "-" + cluster
	readable = strings.TrimRight(readable[:min(len(readable), maxName-suffix-1)], "-.")

	return readable + "-" + digest(addon, cluster)[:suffix]
}

// Labels are those of a TalosClusterAddonRelease.
func Labels(addon, cluster string) map[string]string {
	return map[string]string{
		clusterv1.ClusterNameLabel: cluster,
		addonv1.AddonNameLabel:     format.MustFormatValue(addon),
	}
}

// Owner is the value of addonv1.OwnerLabel.
func Owner(namespace, cluster, addon string) string {
	return digest(namespace, cluster, addon)[:maxLabel]
}

// Target is the release of an add-on in a workload cluster.
func Target(addon *addonv1.TalosClusterAddon) release.Target {
	return release.Target{
		Namespace: cmp.Or(addon.Spec.Release.Namespace, addonv1.DefaultReleaseNamespace), Name: cmp.Or(addon.Spec.Release.Name, addon.Name),
	}
}
