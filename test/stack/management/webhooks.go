package management

import (
	"context"
	"fmt"
	"strings"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// redirection leads calls of the API server to Services, which nothing serves
// here, to the managers' ports on this machine.
type redirection struct {
	client client.Client
	// ports are the webhook ports by namespace of the Service.
	ports map[string]int
	// ca is the certificate that the managers' serving certificates are
	// signed by.
	ca []byte
}

func (r *redirection) url(namespace string, path *string) (string, bool) {
	port, ok := r.ports[namespace]
	if !ok {
		return "", false
	}
	url := "https://" + address(port)
	if path != nil {
		url += "/" + strings.TrimPrefix(*path, "/")
	}
	return url, true
}

// redirect rewrites all webhook configurations and kinds.
func (r *redirection) redirect(ctx context.Context) error {
	var validating admissionv1.ValidatingWebhookConfigurationList
	var mutating admissionv1.MutatingWebhookConfigurationList
	var kinds apiextensionsv1.CustomResourceDefinitionList
	for _, list := range []client.ObjectList{&validating, &mutating, &kinds} {
		if err := r.client.List(ctx, list); err != nil {
			return fmt.Errorf("listing webhooks: %w", err)
		}
	}
	for i := range validating.Items {
		item := &validating.Items[i]
		if err := r.patch(ctx, item, func() bool {
			changed := false
			for j := range item.Webhooks {
				changed = r.admission(&item.Webhooks[j].ClientConfig) || changed
			}
			return changed
		}); err != nil {
			return err
		}
	}
	for i := range mutating.Items {
		item := &mutating.Items[i]
		if err := r.patch(ctx, item, func() bool {
			changed := false
			for j := range item.Webhooks {
				changed = r.admission(&item.Webhooks[j].ClientConfig) || changed
			}
			return changed
		}); err != nil {
			return err
		}
	}
	for i := range kinds.Items {
		item := &kinds.Items[i]
		if err := r.patch(ctx, item, func() bool { return r.conversion(item) }); err != nil {
			return err
		}
	}
	return nil
}

func (r *redirection) patch(ctx context.Context, object client.Object, change func() bool) error {
	before, ok := object.DeepCopyObject().(client.Object)
	if !ok || !change() {
		return nil
	}
	if err := r.client.Patch(ctx, object, client.MergeFrom(before)); err != nil {
		return fmt.Errorf("redirecting the webhooks of %s: %w", object.GetName(), err)
	}
	return nil
}

func (r *redirection) admission(config *admissionv1.WebhookClientConfig) bool {
	if config.Service == nil {
		return false
	}
	url, ok := r.url(config.Service.Namespace, config.Service.Path)
	if !ok {
		return false
	}
	*config = admissionv1.WebhookClientConfig{URL: &url, CABundle: r.ca}
	return true
}

func (r *redirection) conversion(kind *apiextensionsv1.CustomResourceDefinition) bool {
	conversion := kind.Spec.Conversion
	if conversion == nil || conversion.Webhook == nil || conversion.Webhook.ClientConfig == nil {
		return false
	}
	service := conversion.Webhook.ClientConfig.Service
	if service == nil {
		return false
	}
	url, ok := r.url(service.Namespace, service.Path)
	if !ok {
		return false
	}
	conversion.Webhook.ClientConfig = &apiextensionsv1.WebhookClientConfig{URL: &url, CABundle: r.ca}
	return true
}
