// Package audit judges the rights of our managers by what they have asked the API
// server for: nothing may be refused, and no right may be there for nothing.
package audit

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/yaml"
)

const (
	// providerLabel is on everything that clusterctl installs for a provider.
	providerLabel = "cluster.x-k8s.io/provider"
	// ours is at the end of the labels of our providers, or a word of them:
	// addon-talos-backup.
	ours = "-talos"
)

// isOurs reports whether a label is that of a provider of ours.
func isOurs(provider string) bool { return strings.Contains(provider+"-", ours+"-") }

// Grant is one verb on one resource that a manager may use.
type Grant struct {
	// Manager is the provider of the manager, as clusterctl labels it.
	Manager string
	// Namespace is where it may; empty means everywhere.
	Namespace string
	// Group and Resource are what it may use the verb on; a resource may have a
	// subresource behind a slash. Each may be "*".
	Group, Resource string
	// Name is the only object; empty means all.
	Name string
	// Verb is the verb; it may be "*".
	Verb string
}

// Rights are what component files give to the managers in them.
type Rights struct {
	// Managers are the providers of the managers by the user names that the API
	// server knows them under.
	Managers map[string]string
	// Grants are sorted, each is there once.
	Grants []Grant
}

// Users are the user names of the managers.
func (r Rights) Users() []string {
	users := make([]string, 0, len(r.Managers))
	for user := range r.Managers {
		users = append(users, user)
	}
	slices.Sort(users)
	return users
}

// shipped are the objects of component files that rights are made of.
type shipped struct {
	accounts            []*corev1.ServiceAccount
	roles               []*rbacv1.Role
	clusterRoles        []*rbacv1.ClusterRole
	roleBindings        []*rbacv1.RoleBinding
	clusterRoleBindings []*rbacv1.ClusterRoleBinding
}

// ReadRights reads component files. Roles that collect others collect those of our
// providers alone: who else labels a role for them adds rights that are not ours to
// judge.
func ReadRights(components ...[]byte) (Rights, error) {
	objects := &shipped{}
	for _, manifests := range components {
		if err := objects.read(manifests); err != nil {
			return Rights{}, err
		}
	}
	rights := Rights{Managers: map[string]string{}}
	for _, account := range objects.accounts {
		if provider := account.Labels[providerLabel]; isOurs(provider) {
			rights.Managers["system:serviceaccount:"+account.Namespace+":"+account.Name] = provider
		}
	}
	if len(rights.Managers) == 0 {
		return Rights{}, errors.New("reading the rights of managers: the component files have no service account of ours")
	}
	if err := objects.grant(&rights); err != nil {
		return Rights{}, err
	}
	slices.SortFunc(rights.Grants, compareGrants)
	rights.Grants = slices.Compact(rights.Grants)
	return rights, nil
}

func compareGrants(a, b Grant) int {
	return cmp.Or(cmp.Compare(a.Manager, b.Manager), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Group, b.Group),
		cmp.Compare(a.Resource, b.Resource), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Verb, b.Verb))
}

func (s *shipped) read(manifests []byte) error {
	decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(manifests), len(manifests))
	for {
		object := &unstructured.Unstructured{}
		if err := decoder.Decode(object); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("reading a component file: %w", err)
		}
		if err := s.take(object); err != nil {
			return fmt.Errorf("reading %s %s: %w", object.GetKind(), object.GetName(), err)
		}
	}
}

func (s *shipped) take(object *unstructured.Unstructured) error {
	switch object.GetKind() {
	case "ServiceAccount":
		return convert(object, &s.accounts)
	case "Role":
		return convert(object, &s.roles)
	case "ClusterRole":
		return convert(object, &s.clusterRoles)
	case "RoleBinding":
		return convert(object, &s.roleBindings)
	case "ClusterRoleBinding":
		return convert(object, &s.clusterRoleBindings)
	}
	return nil
}

func convert[T any](object *unstructured.Unstructured, list *[]*T) error {
	typed := new(T)
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, typed); err != nil {
		return err
	}
	*list = append(*list, typed)
	return nil
}

// grant adds what bindings give to the managers.
func (s *shipped) grant(rights *Rights) error {
	for _, binding := range s.clusterRoleBindings {
		if err := s.bind(rights, binding.Name, "", binding.RoleRef, binding.Subjects); err != nil {
			return err
		}
	}
	for _, binding := range s.roleBindings {
		if err := s.bind(rights, binding.Name, binding.Namespace, binding.RoleRef, binding.Subjects); err != nil {
			return err
		}
	}
	return nil
}

func (s *shipped) bind(rights *Rights, name, namespace string, role rbacv1.RoleRef, subjects []rbacv1.Subject) error {
	for _, subject := range subjects {
		manager, found := rights.Managers["system:serviceaccount:"+subject.Namespace+":"+subject.Name]
		if subject.Kind != rbacv1.ServiceAccountKind || !found {
			continue
		}
		rules, err := s.rules(namespace, role)
		if err != nil {
			return fmt.Errorf("following binding %s: %w", name, err)
		}
		for _, rule := range rules {
			rights.Grants = append(rights.Grants, expand(manager, namespace, rule)...)
		}
	}
	return nil
}

// rules are those of a role, collected ones included.
func (s *shipped) rules(namespace string, reference rbacv1.RoleRef) ([]rbacv1.PolicyRule, error) {
	if reference.Kind == "Role" {
		for _, role := range s.roles {
			if role.Namespace == namespace && role.Name == reference.Name {
				return role.Rules, nil
			}
		}
		return nil, fmt.Errorf("role %s is not in the component files", reference.Name)
	}
	for _, role := range s.clusterRoles {
		if role.Name != reference.Name {
			continue
		}
		if role.AggregationRule == nil {
			return role.Rules, nil
		}
		return s.aggregate(role.AggregationRule.ClusterRoleSelectors)
	}
	return nil, fmt.Errorf("cluster role %s is not in the component files", reference.Name)
}

func (s *shipped) aggregate(selectors []metav1.LabelSelector) ([]rbacv1.PolicyRule, error) {
	var rules []rbacv1.PolicyRule
	for i := range selectors {
		selector, err := metav1.LabelSelectorAsSelector(&selectors[i])
		if err != nil {
			return nil, fmt.Errorf("reading what a role collects: %w", err)
		}
		for _, role := range s.clusterRoles {
			if isOurs(role.Labels[providerLabel]) && selector.Matches(labels.Set(role.Labels)) {
				rules = append(rules, role.Rules...)
			}
		}
	}
	return rules, nil
}

// expand makes a grant of each combination in a rule. Paths that are no resources
// are not counted: the log says too little about them.
func expand(manager, namespace string, rule rbacv1.PolicyRule) []Grant {
	names := rule.ResourceNames
	if len(names) == 0 {
		names = []string{""}
	}
	var grants []Grant
	for _, group := range rule.APIGroups {
		for _, resource := range rule.Resources {
			for _, name := range names {
				for _, verb := range rule.Verbs {
					grants = append(grants, Grant{Manager: manager, Namespace: namespace, Group: group, Resource: resource, Name: name, Verb: verb})
				}
			}
		}
	}
	return grants
}
