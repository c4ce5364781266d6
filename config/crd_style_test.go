package config

import (
	"slices"
	"testing"

	. "github.com/onsi/gomega"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
)

// TestFieldsAreDescribedAndBounded: each field says what it does, and no list or
// string grows without a limit.
func TestFieldsAreDescribedAndBounded(t *testing.T) {
	for kind, found := range kinds(t) {
		t.Run(kind, func(t *testing.T) {
			g := NewWithT(t)
			for _, version := range found.crd.Spec.Versions {
				root := *version.Schema.OpenAPIV3Schema
				g.Expect(root.Description).NotTo(BeEmpty())
				for _, part := range []string{"spec", "status"} {
					g.Expect(problems(part, root.Properties[part])).To(BeEmpty())
				}
			}
		})
	}
}

// problems are the faults of a field and of all below it.
func problems(path string, field apiextensionsv1.JSONSchemaProps) []string {
	var found []string
	switch field.Type {
	case "string":
		if field.MaxLength == nil && len(field.Enum) == 0 && field.Format == "" {
			found = append(found, path+": a string without a limit")
		}
	case "array":
		if field.MaxItems == nil {
			found = append(found, path+": a list without a limit")
		}
		if field.Items != nil && field.Items.Schema != nil {
			found = append(found, problems(path+"[]", *field.Items.Schema)...)
		}
	}
	for name, below := range field.Properties {
		if slices.Contains([]string{"matchExpressions", "tolerations", "topologySpreadConstraints"}, name) {
			continue // These are Kubernetes' own types.
		}
		if below.Description == "" {
			found = append(found, path+"."+name+": no description")
		}
		found = append(found, problems(path+"."+name, below)...)
	}

	return found
}
