package configgen_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"sync"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	bootstrapv1 "github.com/capi-talos/capi-talos/bootstrap/api/v1beta1"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/configgen"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/secrets"
)

// fuzzBundle spares the fuzzing the making of keys.
var fuzzBundle = sync.OnceValue(func() *secrets.Bundle {
	made, err := secrets.NewBundle(time.Unix(1<<30, 0), "v1.13", nil)
	if err != nil {
		panic(err)
	}
	return made
})

// fuzzInput chooses contract and role by a number.
func fuzzInput(choice byte) configgen.Input {
	contracts := configgen.Contracts()
	in := configgen.Input{
		Role: configgen.RoleWorker, Contract: contracts[int(choice)%len(contracts)], ClusterName: "fuzz", Endpoint: "https://10.0.0.1:6443",
		KubernetesVersion: "v1.36.3", Secrets: fuzzBundle().Machinery(),
	}
	if choice&0x80 != 0 {
		in.Role, in.Hostname = configgen.RoleControlPlane, "fuzz-abcde"
	}
	return in
}

// expectWhole holds whatever the patches are: a configuration is for the role,
// has the name, and is read again; else an error of ours says why.
func expectWhole(t *testing.T, in configgen.Input, rendered []byte, err error) {
	t.Helper()
	var (
		patchError   *configgen.PatchError
		invalidError *configgen.InvalidError
	)
	if err != nil {
		if !errors.As(err, &patchError) && !errors.As(err, &invalidError) {
			t.Fatalf("error of another type: %v", err)
		}
		_ = err.Error()
		return
	}
	described, err := configgen.Describe(rendered)
	if err != nil {
		t.Fatalf("rendered what cannot be read: %v", err)
	}
	if described.Role != in.Role {
		t.Fatalf("rendered a %s for a %s", described.Role, in.Role)
	}
	if in.Role == configgen.RoleControlPlane && described.Hostname != in.Hostname {
		t.Fatalf("a control plane machine is named %q", described.Hostname)
	}
}

// expectPodTwice holds of a machine in a Pod: what it has got already it gets
// once.
func expectPodTwice(t *testing.T, in configgen.Input, rendered []byte) {
	t.Helper()
	once, err := configgen.Overlay(rendered, pod())
	expectWhole(t, in, once, err)
	if err != nil {
		return
	}
	twice, err := configgen.Overlay(once, pod())
	if err != nil {
		t.Fatalf("refused the second time: %v", err)
	}
	if !bytes.Equal(once, twice) {
		t.Fatalf("overlaid twice it is another configuration:\n%s\nonce:\n%s", twice, once)
	}
}

func FuzzStrategicPatch(f *testing.F) {
	for _, user := range userPatches {
		for _, patch := range user.patches {
			f.Add(byte(0), patch)
			f.Add(byte(0x82), patch)
		}
	}
	for _, overlay := range overlays {
		for _, patch := range overlay.host.StrategicPatches {
			f.Add(byte(0x81), patch)
		}
	}
	for _, patch := range []string{
		"machine:\n  $patch: delete\n", "machine: null\ncluster: null\n", "apiVersion: v1alpha1\nkind: HostnameConfig\n$patch: delete\n",
		"[{\"op\": \"remove\", \"path\": \"/machine\"}]", "machine: &a {network: *a}\n", "---\n---\n", "machine:\n  network:\n    interfaces:\n      - null\n",
		"machine: {kubelet: {extraArgs: {a: [b, c]}}}", "machine: {kubelet: {extraConfig: {systemReserved: {cpu: 1}}, nodeIP: null}}", "cluster: {etcd: {subnet: 10.0.0.0/8}, apiServer: null}",
		"apiVersion: v1alpha1\nkind: LinkConfig\nname: lo\n", "machine: {network: {interfaces: [{interface: lo, cidr: 10.9.9.9/32}]}}", "apiVersion: v1alpha1\nkind: KubeNodeConfig\n$patch: delete\n", "cluster: {controlPlane: null}", "apiVersion: v1alpha1\nkind: KubeletConfig\n$patch: delete\n",
	} {
		f.Add(byte(2), patch)
		f.Add(byte(0x80), patch)
	}
	f.Fuzz(func(t *testing.T, choice byte, patch string) {
		in := fuzzInput(choice)
		plain, err := configgen.Render(in)
		if err != nil {
			t.Fatalf("rendering without patches: %v", err)
		}
		in.StrategicPatches = []string{patch}
		rendered, err := configgen.Render(in)
		expectWhole(t, in, rendered, err)
		if _, again := configgen.Render(in); err != nil && (again == nil || again.Error() != err.Error()) {
			t.Fatalf("refused in other words: %v, before %v", again, err)
		}

		host := configgen.HostOverlay{
			StrategicPatches: []string{patch}, ProviderID: "talos://fuzz", InstallDisk: "/dev/sda", InstallImage: "example/installer:v1", Release: in.Contract,
			Network: &configgen.StaticNetwork{HardwareAddress: "02:00:00:00:00:01", Addresses: []string{"10.0.0.5/24"}, Gateway: "10.0.0.1", Nameservers: []string{"10.0.0.2"}},
		}
		overlaid, err := configgen.Overlay(plain, host)
		expectWhole(t, in, overlaid, err)
		if len(rendered) > 0 {
			host.StrategicPatches, host.Container = nil, choice&0x40 != 0
			overlaid, err = configgen.Overlay(rendered, host)
			expectWhole(t, in, overlaid, err)
			expectPodTwice(t, in, rendered)
		}
	})
}

func FuzzJSONPatch(f *testing.F) {
	for _, seed := range []struct{ op, path, from, value string }{
		{"add", "/machine/certSANs", "", `["a.example"]`},
		{"add", "/machine/certSANs/-", "", `"a.example"`},
		{"replace", "/machine/type", "", `"init"`},
		{"remove", "/machine", "", ""},
		{"remove", "/machine/none", "", ""},
		{"move", "/cluster", "/machine", ""},
		{"copy", "/machine/kubelet/extraArgs", "/cluster", ""},
		{"test", "/version", "", `"v1alpha1"`},
		{"add", "/machine/network", "", `{"hostname":"mine"}`},
		{"add", "/", "", `{}`},
		{"replace", "", "", `null`},
		{"add", "/machine/~01/~2", "", `{`},
		{"add", "/machine/network/interfaces", "", `[null]`},
	} {
		f.Add(byte(0), seed.op, seed.path, seed.from, []byte(seed.value))
		f.Add(byte(0x82), seed.op, seed.path, seed.from, []byte(seed.value))
	}
	f.Fuzz(func(t *testing.T, choice byte, op, path, from string, value []byte) {
		spec := bootstrapv1.TalosConfigSpec{
			GenerateType: bootstrapv1.GenerateTypeWorker, ConfigPatches: []bootstrapv1.ConfigPatch{{Op: op, Path: path, From: from}},
		}
		if len(value) > 0 {
			// The API server takes JSON alone.
			if !json.Valid(value) {
				return
			}
			spec.ConfigPatches[0].Value = &apiextensionsv1.JSON{Raw: value}
		}
		patches, err := configgen.FromSpec(&spec)
		in := fuzzInput(choice)
		if err != nil {
			expectWhole(t, in, nil, err)
			return
		}
		in.JSONPatches = patches.JSONPatches
		rendered, err := configgen.Render(in)
		expectWhole(t, in, rendered, err)
	})
}
