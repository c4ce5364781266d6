package wipe

import (
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
)

// Remember writes into a host that nothing of a claim is left on its machine. It
// belongs into the same update that takes the records of the claim away. An empty
// provider ID is a machine of somebody else, and is not remembered.
func Remember(host *infrav1.TalosHost, providerID string, now time.Time) {
	if providerID == "" {
		return
	}
	Forget(host, providerID)
	host.Spec.Wiped = slices.Insert(host.Spec.Wiped, 0, infrav1.HostWipe{ProviderID: providerID, ProvenAt: metav1.NewTime(now)})
	host.Spec.Wiped = host.Spec.Wiped[:min(len(host.Spec.Wiped), infrav1.MaxHostWipes)]
}

// Forget takes that back. It belongs into the update that records that a
// configuration is about to be sent.
func Forget(host *infrav1.TalosHost, providerID string) {
	host.Spec.Wiped = slices.DeleteFunc(host.Spec.Wiped, func(known infrav1.HostWipe) bool { return known.ProviderID == providerID })
	if len(host.Spec.Wiped) == 0 {
		host.Spec.Wiped = nil
	}
}

// RememberGone writes into a TalosCluster that nothing is left of a control plane
// machine in a Pod: its Pod, its volume and its Secret are gone. It has to be stored
// before the finalizer of the TalosMachine goes. False means that nothing has changed.
func RememberGone(cluster *infrav1.TalosCluster, providerID string) bool {
	known := infrav1.GoneMachines(cluster.Annotations)
	// The ID of a machine in a Pod is minted, and so never has the separator.
	if providerID == "" || strings.Contains(providerID, ",") || slices.Contains(known, providerID) {
		return false
	}
	known = slices.Insert(known, 0, providerID)
	known = known[:min(len(known), infrav1.MaxGoneMachines)]
	metav1.SetMetaDataAnnotation(&cluster.ObjectMeta, infrav1.GoneMachinesAnnotation, strings.Join(known, ","))

	return true
}

// Union is what was recorded with earlier orders to wipe, and with this one: what an
// earlier one has not wiped is still to be looked for.
func Union(recorded, made []string) []string {
	all := slices.Concat(recorded, made)
	slices.Sort(all)
	all = slices.Compact(all)

	return all[:min(len(all), infrav1.MaxReleaseVolumes)]
}
