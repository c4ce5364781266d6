package helm

import (
	"helm.sh/helm/v3/pkg/kube"
	"k8s.io/kubectl/pkg/validation"
)

// withoutSchema has Helm not validate objects before it sends them. All that it does
// otherwise is to read the schema of their API group, which may have more than a megabyte,
// to learn that the API server validates them itself, as all do since Kubernetes 1.27: for
// each action anew, and that is most of what an action takes.
type withoutSchema struct{ kube.Factory }

// Validator implements kube.Factory.
func (withoutSchema) Validator(string) (validation.Schema, error) {
	return validation.NullSchema{}, nil
}
