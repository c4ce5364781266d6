package talosclient

import (
	"context"
	"fmt"
	"path"
	"strconv"
	"strings"

	"github.com/blang/semver/v4"
	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/siderolabs/talos/pkg/machinery/resources/etcd"
	"go.yaml.in/yaml/v4"
)

// quotaArgument is the argument of etcd that limits its database.
const quotaArgument = "quota-backend-bytes"

// EtcdSpec implements Node. It reads what etcd is started with as YAML: as a message,
// its arguments are in another field in Talos v1.12 than they are since v1.13, and a
// reader of the one would take those of the other for none.
func (n *node) EtcdSpec(ctx context.Context) (EtcdSpec, error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	text, err := n.specText(ctx, resource.NewMetadata(etcd.NamespaceName, etcd.SpecType, etcd.SpecID, resource.VersionUndefined))
	if err != nil {
		return EtcdSpec{}, fmt.Errorf("reading what etcd is started with: %w", err)
	}
	if text == nil {
		return EtcdSpec{}, nil
	}
	return etcdSpec(text)
}

// etcdSpec reads what etcd is started with.
func etcdSpec(spec []byte) (EtcdSpec, error) {
	var read struct {
		Name                string               `yaml:"name"`
		AdvertisedAddresses []string             `yaml:"advertisedAddresses"`
		Image               string               `yaml:"image"`
		ExtraArgs           map[string]arguments `yaml:"extraArgs"`
	}
	if err := yaml.Unmarshal(spec, &read); err != nil {
		return EtcdSpec{}, fmt.Errorf("reading what etcd is started with: %w", err)
	}
	return EtcdSpec{
		Hostname: read.Name, AdvertisedAddresses: read.AdvertisedAddresses, QuotaBytes: quota(read.ExtraArgs[quotaArgument]),
		Version: imageVersion(read.Image),
	}, nil
}

// imageVersion is the version that the tag of an image says, without a "v".
func imageVersion(image string) string {
	named, _, _ := strings.Cut(image, "@")
	// A colon before the last slash is that of a port.
	_, tag, _ := strings.Cut(path.Base(named), ":")
	version := strings.TrimPrefix(tag, "v")
	if _, err := semver.Parse(version); err != nil {
		return ""
	}
	return version
}

// quota is the limit of the database that the values of its argument state.
func quota(values arguments) int64 {
	if len(values) == 0 {
		return DefaultEtcdQuota
	}
	stated, err := strconv.ParseInt(values[len(values)-1], 10, 64)
	switch {
	case err != nil:
		return 0 // etcd does not start with it, and says so itself.
	case stated == 0:
		return DefaultEtcdQuota
	}
	// A negative one switches the limit off (server/storage/quota.go, NewBackendQuota).
	return max(stated, 0)
}

// arguments are the values of one argument, of which the last counts: a text in Talos
// v1.12, and a list below the key values since v1.13.
type arguments []string

// UnmarshalYAML implements yaml.Unmarshaler. Another form is a value that nobody can
// read: all else is known.
func (a *arguments) UnmarshalYAML(node *yaml.Node) error {
	if node.Kind == yaml.ScalarNode {
		*a = arguments{node.Value}
		return nil
	}
	var listed struct {
		Values []string `yaml:"values"`
	}
	if node.Kind != yaml.MappingNode || node.Decode(&listed) != nil {
		*a = arguments{""}
		return nil
	}
	*a = listed.Values
	return nil
}
