package talosclient

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/state"
	"github.com/siderolabs/talos/pkg/machinery/resources/etcd"
	"go.yaml.in/yaml/v4"
)

// quotaArgument is the argument of etcd that limits its database.
const quotaArgument = "quota-backend-bytes"

// EtcdQuota implements Node. It reads what etcd is started with as YAML: as a message,
// its arguments are in another field in Talos v1.12 than they are since v1.13, and a
// reader of the one would take those of the other for none.
func (n *node) EtcdQuota(ctx context.Context) (int64, error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	spec := resource.NewMetadata(etcd.NamespaceName, etcd.SpecType, etcd.SpecID, resource.VersionUndefined)
	res, err := n.COSI.Get(ctx, spec, state.WithGetUnmarshalOptions(state.WithSkipProtobufUnmarshal()))
	if state.IsNotFoundError(err) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("reading what etcd is started with: %w", err)
	}
	text, err := yaml.Marshal(res.Spec())
	if err != nil {
		return 0, fmt.Errorf("reading what etcd is started with: %w", err)
	}
	return etcdQuota(text)
}

// etcdQuota is the quota in what etcd is started with.
func etcdQuota(spec []byte) (int64, error) {
	var read struct {
		ExtraArgs map[string]arguments `yaml:"extraArgs"`
	}
	if err := yaml.Unmarshal(spec, &read); err != nil {
		return 0, fmt.Errorf("reading what etcd is started with: %w", err)
	}
	values := read.ExtraArgs[quotaArgument]
	if len(values) == 0 {
		return DefaultEtcdQuota, nil
	}
	quota, err := strconv.ParseInt(values[len(values)-1], 10, 64)
	switch {
	case err != nil:
		return 0, fmt.Errorf("reading etcd's argument %s: %w", quotaArgument, err)
	case quota == 0:
		return DefaultEtcdQuota, nil
	}
	// A negative one switches the limit off (server/storage/quota.go, NewBackendQuota).
	return max(quota, 0), nil
}

// arguments are the values of one argument, of which the last counts: a text in Talos
// v1.12, and a list below the key values since v1.13.
type arguments []string

// errArguments says that an argument of etcd has another form.
var errArguments = errors.New("the argument is neither a text nor a list below the key values")

// UnmarshalYAML implements yaml.Unmarshaler.
func (a *arguments) UnmarshalYAML(node *yaml.Node) error {
	if node.Kind == yaml.ScalarNode {
		*a = arguments{node.Value}
		return nil
	}
	var listed struct {
		Values []string `yaml:"values"`
	}
	if node.Kind != yaml.MappingNode || node.Decode(&listed) != nil {
		return errArguments
	}
	*a = listed.Values
	return nil
}
