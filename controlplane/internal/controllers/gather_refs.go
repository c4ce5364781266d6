package controllers

import (
	"context"
	"errors"
	"fmt"
	"net/url"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/controllers/external"
	"sigs.k8s.io/controller-runtime/pkg/client"

	bootstrapv1 "github.com/capi-talos/capi-talos/bootstrap/api/v1beta1"
)

// parts are what a Machine refers to.
type parts struct {
	// infraMachine is the infrastructure machine; nil when there is none.
	infraMachine *unstructured.Unstructured
	// config is the TalosConfig; nil when there is none.
	config *bootstrapv1.TalosConfig
}

// gatherMachineRefs reads what the Machines refer to.
func (r *Reconciler) gatherMachineRefs(ctx context.Context, s *scope) error {
	s.parts = map[string]parts{}
	for _, machine := range s.machines {
		found, err := r.readParts(ctx, machine)
		if err != nil {
			return err
		}
		s.parts[machine.Name] = found
	}

	return nil
}

func (r *Reconciler) readParts(ctx context.Context, machine *clusterv1.Machine) (parts, error) {
	infraMachine, err := readRef(ctx, r.Client, machine.Spec.InfrastructureRef, machine.Namespace)
	switch {
	case apierrors.IsNotFound(err):
		infraMachine = nil
	case err != nil:
		return parts{}, fmt.Errorf("reading the infrastructure machine of Machine %s: %w", machine.Name, err)
	}

	config := &bootstrapv1.TalosConfig{}
	err = r.Client.Get(ctx, client.ObjectKey{Namespace: machine.Namespace, Name: machine.Spec.Bootstrap.ConfigRef.Name}, config)
	switch {
	case apierrors.IsNotFound(err):
		config = nil
	case err != nil:
		return parts{}, fmt.Errorf("reading the TalosConfig of Machine %s: %w", machine.Name, err)
	default:
		config.SetGroupVersionKind(bootstrapv1.GroupVersion.WithKind("TalosConfig"))
	}

	return parts{infraMachine: infraMachine, config: config}, nil
}

// readRef reads what a reference names. That its kind is not installed, or is of no version
// of Cluster API's contract, is a cause to tell; the library drops the type of that error.
// One of the way to the API server has an address in it.
func readRef(ctx context.Context, reader client.Reader, ref clusterv1.ContractVersionedObjectReference, namespace string) (*unstructured.Unstructured, error) {
	object, err := external.GetObjectFromContractVersionedRef(ctx, reader, ref, namespace)
	request := (*url.Error)(nil)
	if err != nil && ctx.Err() == nil && apierrors.ReasonForError(err) == metav1.StatusReasonUnknown && !errors.As(err, &request) {
		return nil, causeError{fmt.Errorf("%s %s in API group %s cannot be read: %w", ref.Kind, ref.Name, ref.APIGroup, err)}
	}

	return object, err
}

// held reports whether a Machine is held back: the provider has not allowed it to
// have a configuration yet.
func (p parts) held() bool {
	if p.config == nil || p.config.Status.DataSecretName != "" {
		return false
	}
	_, held := p.config.Annotations[bootstrapv1.HoldBootstrapDataAnnotation]

	return held
}
