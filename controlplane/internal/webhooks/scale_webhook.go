package webhooks

import (
	"context"
	"fmt"
	"net/http"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/webhook"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"
)

// scalePath is where the webhook of the scale subresource is served.
const scalePath = "/validate-scale-controlplane-cluster-x-k8s-io-v1beta1-taloscontrolplane"

// +kubebuilder:webhook:verbs=update,path=/validate-scale-controlplane-cluster-x-k8s-io-v1beta1-taloscontrolplane,mutating=false,failurePolicy=fail,matchPolicy=Equivalent,groups=controlplane.cluster.x-k8s.io,resources=taloscontrolplanes/scale,versions=v1beta1,name=validation-scale.taloscontrolplane.controlplane.cluster.x-k8s.io,sideEffects=None,admissionReviewVersions=v1

// Scale validates the scale subresource of TalosControlPlanes, by which kubectl
// scale changes the number of replicas.
type Scale struct {
	decoder admission.Decoder
}

var _ admission.Handler = &Scale{}

// SetupWebhookWithManager registers the webhook with mgr.
func (w *Scale) SetupWebhookWithManager(mgr ctrl.Manager) error {
	w.decoder = admission.NewDecoder(mgr.GetScheme())
	mgr.GetWebhookServer().Register(scalePath, &webhook.Admission{Handler: w})

	return nil
}

// Handle checks the wanted number of replicas by the rules of the object itself.
func (w *Scale) Handle(_ context.Context, req admission.Request) admission.Response {
	scale := &autoscalingv1.Scale{}
	if err := w.decoder.Decode(req, scale); err != nil {
		return admission.Errored(http.StatusBadRequest, fmt.Errorf("reading the Scale: %w", err))
	}
	if errs := validateReplicas(&scale.Spec.Replicas, field.NewPath("spec", "replicas")); len(errs) > 0 {
		return admission.Denied(errs.ToAggregate().Error())
	}

	return admission.Allowed("")
}
