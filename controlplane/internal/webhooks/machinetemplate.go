package webhooks

import (
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/validate/content"
	"k8s.io/apimachinery/pkg/util/validation/field"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	backupv1 "github.com/capi-talos/capi-talos/backup/api/v1alpha1"
	bootstrapv1 "github.com/capi-talos/capi-talos/bootstrap/api/v1beta1"
	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
)

// annotationsForOne are the annotations that act on, or are records of, one Machine, its
// TalosConfig or its infrastructure machine. Those of a TalosControlPlane are not among
// them: a topology writes what it has for that into the template of the Machines, too.
func annotationsForOne() []string {
	return []string{
		backupv1.WipedForAnnotation,
		bootstrapv1.HoldBootstrapDataAnnotation,
		clusterv1.RemediateMachineAnnotation,
		clusterv1.TemplateClonedFromGroupKindAnnotation,
		clusterv1.TemplateClonedFromNameAnnotation,
		controlplanev1.EtcdLeftAnnotation,
		controlplanev1.EtcdMemberAnnotation,
		controlplanev1.EtcdPreTerminateHookAnnotation,
		controlplanev1.EtcdPreTerminateHookOverrideAnnotation,
		controlplanev1.RemediationForAnnotation,
		infrav1.BlockMoveAnnotation,
		infrav1.DeleteForMoveAnnotation,
		infrav1.ReprovisionAnnotation,
	}
}

// validateAnnotations checks the annotations of all Machines. One that was there before
// is not judged.
func validateAnnotations(before, after map[string]string, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, key := range slices.Sorted(maps.Keys(after)) {
		value, stored := before[key]
		if !slices.Contains(annotationsForOne(), key) || stored && value == after[key] {
			continue
		}
		errs = append(errs, field.Forbidden(path.Key(key), "is for one machine, or a record of a provider; on all of them it gives up etcd, "+
			"wipes machines or holds them back, for good: annotate the one object that is meant instead"))
	}

	return errs
}

// validateTaints checks the taints of all Machines by the rules of Cluster API, which else
// refuses each Machine. A key that was there before is not judged.
func validateTaints(before, after []clusterv1.MachineTaint, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i, taint := range after {
		if slices.ContainsFunc(before, func(known clusterv1.MachineTaint) bool { return known.Key == taint.Key }) {
			continue
		}
		at := path.Index(i).Child("key")
		if isReserved(taint.Key) {
			errs = append(errs, field.Invalid(at, taint.Key, "is a key that Kubernetes or Cluster API keeps for itself, and no Machine may have; use a key of your own"))
		}
		for _, problem := range content.IsLabelKey(taint.Key) {
			errs = append(errs, field.Invalid(at, taint.Key, problem))
		}
	}

	return errs
}

// isReserved reports whether Cluster API takes no taint of this key on a Machine.
func isReserved(key string) bool {
	switch key {
	case clusterv1.NodeUninitializedTaint.Key, clusterv1.NodeOutdatedRevisionTaint.Key, "node-role.kubernetes.io/master":
		return true
	case "node.kubernetes.io/out-of-service":
		return false
	default:
		return strings.HasPrefix(key, "node.kubernetes.io/") || strings.HasPrefix(key, "node.cloudprovider.kubernetes.io/")
	}
}
