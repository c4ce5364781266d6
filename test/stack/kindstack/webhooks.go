package kindstack

import (
	"context"
	"fmt"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	// reread is a change of a webhook configuration that changes nothing.
	reread = `{"metadata":{"annotations":{"test.capi-talos/reread":"true"}}}`
	// caInterval and caTimeout are how often and for how long their CAs are looked for.
	caInterval = 200 * time.Millisecond
	caTimeout  = 2 * time.Minute
)

// RereadWebhooks waits until all webhook configurations have a CA, and has the API server
// read them once more. Now and then all requests are refused otherwise: a configuration
// that changes while the API server gathers all of them can stay as it was before, without
// its CA, until its next change. What UpdateFunc of k8s.io/apiserver,
// pkg/admission/configuration, takes out of its cache is put back by a getConfiguration that
// has begun before.
func RereadWebhooks(ctx context.Context, config *rest.Config) error {
	c, err := client.New(config, client.Options{Scheme: clientgoscheme.Scheme})
	if err != nil {
		return fmt.Errorf("making a client for webhook configurations: %w", err)
	}
	err = wait.PollUntilContextTimeout(ctx, caInterval, caTimeout, true, func(ctx context.Context) (bool, error) {
		found, err := webhookConfigurations(ctx, c)
		if err != nil {
			return false, err
		}
		for _, configuration := range found {
			for _, called := range configuration.calls {
				if len(called.CABundle) == 0 {
					return false, nil
				}
			}
		}
		for _, configuration := range found {
			if err := c.Patch(ctx, configuration.object, client.RawPatch(types.MergePatchType, []byte(reread))); err != nil {
				return false, fmt.Errorf("changing webhook configuration %s: %w", configuration.object.GetName(), err)
			}
		}
		return true, nil
	})
	if err != nil {
		return fmt.Errorf("waiting for the CAs of webhooks: %w", err)
	}
	return nil
}

// webhookConfiguration is one of either kind, and whom it calls.
type webhookConfiguration struct {
	object client.Object
	calls  []admissionregistrationv1.WebhookClientConfig
}

func webhookConfigurations(ctx context.Context, c client.Client) ([]webhookConfiguration, error) {
	validating, mutating := &admissionregistrationv1.ValidatingWebhookConfigurationList{}, &admissionregistrationv1.MutatingWebhookConfigurationList{}
	for _, list := range []client.ObjectList{validating, mutating} {
		if err := c.List(ctx, list); err != nil {
			return nil, fmt.Errorf("listing webhook configurations: %w", err)
		}
	}
	var all []webhookConfiguration
	for i := range validating.Items {
		found := webhookConfiguration{object: &validating.Items[i]}
		for _, webhook := range validating.Items[i].Webhooks {
			found.calls = append(found.calls, webhook.ClientConfig)
		}
		all = append(all, found)
	}
	for i := range mutating.Items {
		found := webhookConfiguration{object: &mutating.Items[i]}
		for _, webhook := range mutating.Items[i].Webhooks {
			found.calls = append(found.calls, webhook.ClientConfig)
		}
		all = append(all, found)
	}
	return all, nil
}
