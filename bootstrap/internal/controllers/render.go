package controllers

import (
	"errors"
	"fmt"

	"k8s.io/utils/ptr"

	bootstrapv1 "github.com/capi-talos/capi-talos/bootstrap/api/v1beta1"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/condition"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/configgen"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/secrets"
)

// waitingFor says what a configuration still lacks; a finding without status
// when nothing.
func waitingFor(s *scope) condition.Finding {
	switch {
	case !ptr.Deref(s.cluster.Status.Initialization.InfrastructureProvisioned, false):
		return condition.False(bootstrapv1.WaitingForClusterInfrastructureReason, "Waiting for the infrastructure of the Cluster to be provisioned")
	case !s.cluster.Spec.ControlPlaneEndpoint.IsValid():
		return condition.False(bootstrapv1.WaitingForControlPlaneEndpointReason, "Waiting for the control plane endpoint of the Cluster to be set")
	case s.bundle == nil && (s.controlPlane || hasTalosControlPlane(s.cluster) || s.config.Spec.GenerateType != bootstrapv1.GenerateTypeNone):
		return condition.False(bootstrapv1.WaitingForCertificatesReason, "Waiting for the secrets of the cluster; see condition CertificatesAvailable")
	}

	return condition.Finding{}
}

// render makes the machine configuration without what only its host knows.
func render(s *scope) ([]byte, error) {
	input, err := configgen.FromSpec(&s.config.Spec)
	if err != nil {
		return nil, err
	}
	input.ClusterName = s.cluster.Name
	input.Endpoint = "https://" + s.cluster.Spec.ControlPlaneEndpoint.String()
	input.KubernetesVersion = s.machine.Spec.Version
	input.APIServerPort = s.cluster.Spec.ClusterNetwork.APIServerPort
	input.PodCIDRs = s.cluster.Spec.ClusterNetwork.Pods.CIDRBlocks
	input.ServiceCIDRs = s.cluster.Spec.ClusterNetwork.Services.CIDRBlocks
	input.ServiceDomain = s.cluster.Spec.ClusterNetwork.ServiceDomain
	input.Hostname = hostname(s)
	if s.bundle != nil {
		input.Secrets = s.bundle.Machinery()
	}

	rendered, err := configgen.Render(input)
	if err != nil {
		return nil, err
	}
	if err := checkKeys(s, rendered); err != nil {
		return nil, &configgen.InvalidError{Err: err}
	}

	return rendered, nil
}

// checkRole refuses a configuration for another role than the Machine's. It
// needs nothing but the two objects, so it comes before everything that is
// waited for.
func checkRole(s *scope) error {
	want := configgen.RoleWorker
	if s.controlPlane {
		want = configgen.RoleControlPlane
	}
	spec := &s.config.Spec
	if spec.GenerateType != bootstrapv1.GenerateTypeNone {
		if string(spec.GenerateType) != string(want) {
			return fmt.Errorf("generateType is %q, but the Machine is a %s", spec.GenerateType, want)
		}
		if s.machine.Spec.Version == "" {
			return errors.New("the Machine has no version, which tells the Kubernetes version to configure: set spec.version of what makes the Machine")
		}
		return nil
	}
	described, err := configgen.Describe([]byte(spec.Data))
	if err != nil {
		return err
	}
	if described.Role != want {
		return fmt.Errorf("data configures a %s, but the Machine is a %s", described.Role, want)
	}
	if s.controlPlane && described.Hostname != "" && described.Hostname != s.machine.Name {
		return fmt.Errorf("data sets the host name %q of a control plane machine, which must be the name of its Machine, %q: remove it from data", described.Hostname, s.machine.Name)
	}

	return nil
}

// checkKeys refuses data that with its patches has other key material than the cluster. Of
// a worker without control plane there may be none to compare with.
func checkKeys(s *scope, rendered []byte) error {
	if s.config.Spec.GenerateType != bootstrapv1.GenerateTypeNone || s.bundle == nil {
		return nil
	}
	name := secrets.BundleName(s.cluster.Name)
	if !s.controlPlane {
		if admitted, err := s.bundle.IsAdmitted(rendered); err != nil || admitted {
			return err
		}
		return fmt.Errorf("data has another machine.ca than Secret %s, or none, and none like it in machine.acceptedCAs: "+
			"the managers would be locked out, and could not wipe the machine; state certs.os.crt of that Secret there", name)
	}
	made, err := s.bundle.Made(rendered)
	if err != nil || made {
		return err
	}
	// Bundles of former releases were made from data without its patches.
	if former, err := s.bundle.Made([]byte(s.config.Spec.Data)); err == nil && former && s.bundle.SharesCAs(rendered) {
		return nil
	}

	return fmt.Errorf("data has other certificates than Secret %s: it belongs to another cluster", name)
}

// hostname is the host name that a configuration states; empty when it leaves
// the name to patches and platform. Talos removes an etcd member of the name
// with which a node joins, so control plane machines are always named like
// their Machine (design D3), also where the configuration is the user's.
func hostname(s *scope) string {
	if s.controlPlane {
		return s.machine.Name
	}
	switch s.config.Spec.Hostname.Source {
	case bootstrapv1.HostnameSourceMachineName:
		return s.machine.Name
	case bootstrapv1.HostnameSourceInfrastructureName:
		return s.machine.Spec.InfrastructureRef.Name
	}

	return ""
}
