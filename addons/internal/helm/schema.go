package helm

import (
	"fmt"

	"helm.sh/helm/v3/pkg/kube"
	"k8s.io/kubectl/pkg/validation"
)

// withoutSchema is a client that does not validate objects before it sends them. All that
// Helm's own does is to read the schema of their API group, which may have more than a
// megabyte, to learn that the API server validates them itself, as all do since Kubernetes
// 1.27: for each action anew, and that is most of what an action takes.
func withoutSchema(client kube.Interface) (kube.Interface, error) {
	made, isOwn := client.(*kube.Client)
	if !isOwn {
		return nil, fmt.Errorf("configuring Helm: its client is a %T", client)
	}
	made.Factory = factory{made.Factory}

	return made, nil
}

type factory struct{ kube.Factory }

// Validator implements kube.Factory.
func (factory) Validator(string) (validation.Schema, error) { return validation.NullSchema{}, nil }
