package metal

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	bootstrapv1 "github.com/capi-talos/capi-talos/bootstrap/api/v1beta1"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/condition"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/configgen"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/infrastructure/internal/backends"
	"github.com/capi-talos/capi-talos/infrastructure/internal/claim"
	"github.com/capi-talos/capi-talos/infrastructure/internal/installdisk"
)

// bootstrapData is a machine configuration, as far as it was needed.
type bootstrapData struct {
	configuration []byte
	request       claim.Request
}

// reconcileBootstrapData waits for the machine configuration. A host is chosen
// by what the configuration needs, so nothing is claimed before. A machine that
// was given its configuration needs it no more.
func (m *Backend) reconcileBootstrapData(ctx context.Context, scope *backends.Scope) (*bootstrapData, ctrl.Result, error) {
	machine := scope.TalosMachine
	secretName := scope.Machine.Spec.Bootstrap.DataSecretName
	if machine.Spec.HostRef.Claim == infrav1.HostClaimBound {
		return &bootstrapData{}, ctrl.Result{}, nil
	}
	if secretName == nil {
		scope.Observed.Claim = condition.False(infrav1.WaitingForBootstrapDataReason, "Waiting for the bootstrap provider to make the machine configuration")

		return nil, ctrl.Result{}, nil
	}
	configuration, err := backends.ReadConfiguration(ctx, m.Client, machine.Namespace, *secretName)
	if err != nil {
		return nil, ctrl.Result{}, err
	}
	if configuration == nil {
		scope.Observed.Claim = condition.Falsef(infrav1.WaitingForBootstrapDataReason, "Secret %s with the machine configuration is missing", *secretName)

		return nil, m.Pacing.Later(), nil
	}
	data := &bootstrapData{configuration: configuration}
	invalid, err := m.fillRequest(ctx, scope, data)
	if err != nil {
		return nil, ctrl.Result{}, err
	}
	if invalid != "" {
		scope.Observed.Claim = condition.False(infrav1.InvalidSelectorReason, invalid)

		return nil, ctrl.Result{}, nil
	}

	return data, ctrl.Result{}, nil
}

// configurationOf reads the machine configuration when a claimed host turns
// out to need it.
func (m *Backend) configurationOf(ctx context.Context, scope *backends.Scope, data *bootstrapData) ([]byte, error) {
	if data.configuration != nil {
		return data.configuration, nil
	}
	if secretName := scope.Machine.Spec.Bootstrap.DataSecretName; secretName != nil {
		return backends.ReadConfiguration(ctx, m.Client, scope.TalosMachine.Namespace, *secretName)
	}

	return nil, nil
}

// fillRequest says what host is wanted. invalid tells a mistake of the user.
func (m *Backend) fillRequest(ctx context.Context, scope *backends.Scope, data *bootstrapData) (invalid string, err error) {
	spec := metalSpec(scope.TalosMachine)
	selector, err := metav1.LabelSelectorAsSelector(&spec.HostSelector)
	if err != nil {
		return fmt.Sprintf("hostSelector is not valid: %v", err), nil
	}
	description, err := configgen.Describe(data.configuration)
	if err != nil {
		return fmt.Sprintf("The machine configuration cannot be read: %v", err), nil
	}
	installDisk, err := installdisk.OfConfiguration(data.configuration)
	if err != nil {
		return fmt.Sprintf("The machine configuration cannot be read: %v", err), nil
	}
	kubernetesVersion := scope.Machine.Spec.Version
	if kubernetesVersion == "" {
		kubernetesVersion = description.KubernetesVersion
	}
	contract, err := m.contract(ctx, scope.Machine)
	if err != nil {
		return "", err
	}
	data.request = claim.Request{
		Selector:            selector,
		FailureDomain:       scope.Machine.Spec.FailureDomain,
		FailureDomainPolicy: spec.FailureDomainPolicy,
		TalosContract:       contract,
		TalosVersion:        spec.Talos.Version,
		KubernetesVersion:   kubernetesVersion,
		InstallDisk:         installDisk,
		InstallForm:         description.InstallForm,
		Now:                 m.Clock.Now(),
	}
	if len(spec.HostSelector.MatchLabels) == 0 && len(spec.HostSelector.MatchExpressions) == 0 {
		data.request.Selector = nil
	}

	return "", nil
}

// contract is the version contract of the machine configuration, empty when
// another bootstrap provider has made it.
func (m *Backend) contract(ctx context.Context, machine *clusterv1.Machine) (string, error) {
	ref := machine.Spec.Bootstrap.ConfigRef
	if ref.Name == "" || ref.APIGroup != bootstrapv1.GroupVersion.Group || ref.Kind != "TalosConfig" {
		return "", nil
	}
	config := &bootstrapv1.TalosConfig{}
	if err := m.Client.Get(ctx, client.ObjectKey{Namespace: machine.Namespace, Name: ref.Name}, config); err != nil {
		if apierrors.IsNotFound(err) {
			return "", nil
		}

		return "", fmt.Errorf("reading TalosConfig %s: %w", ref.Name, err)
	}

	return config.Spec.TalosVersion, nil
}

// metalSpec is the specification, with its defaults.
func metalSpec(machine *infrav1.TalosMachine) infrav1.TalosMachineMetalSpec {
	spec := infrav1.TalosMachineMetalSpec{}
	if machine.Spec.Metal != nil {
		spec = *machine.Spec.Metal
	}
	if spec.FailureDomainPolicy == "" {
		spec.FailureDomainPolicy = infrav1.FailureDomainPreferred
	}
	if spec.ReleasePolicy == "" {
		spec.ReleasePolicy = infrav1.ReleaseWipeSystem
	}

	return spec
}
