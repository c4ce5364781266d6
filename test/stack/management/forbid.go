package management

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Forbidden is what the API server is to refuse to everybody: a moment between two
// steps of a controller lasts as long as the second one is forbidden.
type Forbidden struct {
	// Operation on Resource in Namespace is refused.
	Operation admissionv1.OperationType
	Resource  schema.GroupResource
	Namespace string
	// Unless is an expression of CEL: where it is true, nothing is refused. Empty
	// means that it never is.
	Unless string
	// Try tries what is forbidden, as a dry run: it shows when the rule holds.
	Try func(ctx context.Context) error
}

// forbidden is what the API server says when it refuses.
const forbidden = "a test forbids it"

// Forbid makes the API server refuse something, and returns what ends that. It
// returns once the rule holds.
func (c *Cluster) Forbid(ctx context.Context, rule Forbidden) (lift func(context.Context) error, err error) {
	name := "forbid-" + rule.Resource.Resource + "-" + rule.Namespace
	policy := &admissionv1.ValidatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: admissionv1.ValidatingAdmissionPolicySpec{
			MatchConstraints: &admissionv1.MatchResources{ResourceRules: []admissionv1.NamedRuleWithOperations{{
				RuleWithOperations: admissionv1.RuleWithOperations{
					Operations: []admissionv1.OperationType{rule.Operation},
					Rule:       admissionv1.Rule{APIGroups: []string{rule.Resource.Group}, APIVersions: []string{"*"}, Resources: []string{rule.Resource.Resource}},
				},
			}}},
			Validations: []admissionv1.Validation{{Expression: cmp.Or(rule.Unless, "false"), Message: forbidden}},
		},
	}
	binding := &admissionv1.ValidatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: admissionv1.ValidatingAdmissionPolicyBindingSpec{
			PolicyName: name, ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny},
			MatchResources: &admissionv1.MatchResources{NamespaceSelector: &metav1.LabelSelector{
				MatchLabels: map[string]string{corev1.LabelMetadataName: rule.Namespace},
			}},
		},
	}
	lift = func(ctx context.Context) error {
		return errors.Join(client.IgnoreNotFound(c.Client.Delete(ctx, binding)), client.IgnoreNotFound(c.Client.Delete(ctx, policy)))
	}
	for _, object := range []client.Object{policy, binding} {
		if err := c.Client.Create(ctx, object); err != nil {
			return nil, fmt.Errorf("forbidding an operation on %s: %w", rule.Resource, errors.Join(err, lift(ctx)))
		}
	}
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	return lift, c.await(ctx, "an operation on "+rule.Resource.String()+" to be refused", func(ctx context.Context) (bool, error) {
		err := rule.Try(ctx)
		return err != nil && strings.Contains(err.Error(), forbidden), nil
	})
}
