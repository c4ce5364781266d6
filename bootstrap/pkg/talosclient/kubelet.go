package talosclient

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/siderolabs/talos/pkg/machinery/resources/k8s"
	"go.yaml.in/yaml/v4"
)

// providerIDArgument begins the argument of the kubelet that names the provider ID.
const providerIDArgument = "--provider-id="

// ProviderID implements Node. It reads what the kubelet is started with as YAML, as
// EtcdSpec does.
func (n *node) ProviderID(ctx context.Context) (string, error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	text, err := n.specText(ctx, resource.NewMetadata(k8s.NamespaceName, k8s.KubeletSpecType, k8s.KubeletID, resource.VersionUndefined))
	if err != nil {
		return "", fmt.Errorf("reading what the kubelet is started with: %w", err)
	}
	if text == nil {
		return "", nil
	}
	return providerID(text)
}

// providerID is the provider ID in what the kubelet is started with. The last one
// counts, as it does for the kubelet.
func providerID(spec []byte) (string, error) {
	read := struct {
		Args []string `yaml:"args"`
	}{}
	if err := yaml.Unmarshal(spec, &read); err != nil {
		// The text of the error may hold what the kubelet is started with.
		return "", errors.New("reading what the kubelet is started with: it has another form")
	}
	found := ""
	for _, argument := range read.Args {
		if value, named := strings.CutPrefix(argument, providerIDArgument); named {
			found = value
		}
	}
	return found, nil
}
