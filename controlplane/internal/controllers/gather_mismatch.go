package controllers

import (
	"context"

	"k8s.io/utils/ptr"

	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
	"github.com/capi-talos/capi-talos/controlplane/internal/naming"
)

// gatherMismatch finds out whether there is a template, and, while a Machine may have to
// be made, whether it and the TalosCluster are of one kind: in Pods, or on metal. Those
// of other vendors are their own matter. A Machine that would get no configuration, or no
// name, is none that fits either.
func (r *Reconciler) gatherMismatch(ctx context.Context, s *scope) error {
	s.templateMismatch, s.templateMissing = s.networkProblem, ""
	if s.template == nil {
		s.templateMissing = missingTemplate(s)
	}
	if err := naming.Check(s.controlPlane.Spec.MachineNaming.Template, s.cluster.Name, s.controlPlane.Name); err != nil && len(s.machines) > 0 {
		s.templateMismatch = "spec.machineNaming.template " + err.Error()
	}
	complete := len(stayingNames(s)) >= int(ptr.Deref(s.controlPlane.Spec.Replicas, controlplanev1.DefaultReplicas)) && len(s.outdated) == 0
	if complete {
		return nil
	}
	mismatch, err := r.infrastructure.KindMismatch(ctx, s.template, s.cluster)
	if err != nil {
		return err
	}
	if mismatch != "" {
		s.templateMismatch = mismatch
	}

	return nil
}

// missingTemplate says that there is no infrastructure machine template.
func missingTemplate(s *scope) string {
	ref := s.controlPlane.Spec.MachineTemplate.Spec.InfrastructureRef

	return ref.Kind + " " + ref.Name + " does not exist; create it, or name another one in spec.machineTemplate.spec.infrastructureRef"
}
