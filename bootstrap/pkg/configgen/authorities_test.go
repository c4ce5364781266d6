package configgen_test

import (
	"bytes"
	"encoding/base64"
	"strconv"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/configgen"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/secrets"
)

// quoted is a text as JSON, and so as YAML, states it.
func quoted(text []byte) string { return strconv.Quote(string(text)) }

// caPatches are patches of CAs in the form of a contract, with a certificate and a key.
func caPatches(contract string, role configgen.Role, crt, key []byte) (machine, cluster, accepted string) {
	pair := "{crt: " + base64.StdEncoding.EncodeToString(crt)
	if role == configgen.RoleControlPlane {
		pair += ", key: " + base64.StdEncoding.EncodeToString(key)
	}
	pair += "}"
	machine, cluster = "machine: {ca: "+pair+"}", "cluster: {ca: "+pair+"}"
	accepted = "machine: {acceptedCAs: [{crt: " + base64.StdEncoding.EncodeToString(crt) + "}]}\ncluster: {acceptedCAs: [{crt: " + base64.StdEncoding.EncodeToString(crt) + "}]}"
	if contract == "v1.14" {
		const head = "apiVersion: v1alpha1\nkind: KubeAPIServerCAConfig\n"
		cluster = head + "issuingCA: {cert: " + quoted(crt) + ", key: " + quoted(key) + "}\n"
		accepted = head + "acceptedCAs: [" + quoted(crt) + "]\n"
	}

	return machine, cluster, accepted
}

func TestPatchesDoNotChangeTheCAs(t *testing.T) {
	other, err := secrets.NewBundle(time.Unix(1<<30, 0), "v1.13", nil)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	otherCrt, otherKey := other.KubernetesCA()
	for _, contract := range contracts {
		for _, role := range []configgen.Role{configgen.RoleControlPlane, configgen.RoleWorker} {
			in := podInput(contract, role)
			ownCrt, ownKey := fuzzBundle().KubernetesCA()
			machine, cluster, accepted := caPatches(contract, role, otherCrt, otherKey)
			_, sameCluster, _ := caPatches(contract, role, ownCrt, ownKey)
			spelt := func(pem []byte) []byte { return bytes.ReplaceAll(bytes.TrimSpace(pem), []byte("\n"), []byte("\r\n")) }
			_, speltCluster, _ := caPatches(contract, role, spelt(ownCrt), spelt(ownKey))
			speltMachine, _, _ := caPatches(contract, role, spelt(in.Secrets.Certs.OS.Crt), spelt(in.Secrets.Certs.OS.Key))
			sameMachine, _, _ := caPatches(contract, role, in.Secrets.Certs.OS.Crt, in.Secrets.Certs.OS.Key)
			cases := map[string]struct{ patch, want string }{
				"of the machine":      {machine, "it changes machine.ca, which is that of Secret <cluster>-talos: the managers would be locked out, and could not wipe the machine; bring your own keys in that Secret (talosctl gen secrets), or add CAs by machine.acceptedCAs"},
				"of the cluster":      {cluster, "it changes cluster.ca"},
				"that of before":      {sameMachine, ""},
				"that in other lines": {speltMachine, ""},
				"one that is added":   {accepted, ""},
			}
			if role == configgen.RoleControlPlane || contract != "v1.14" {
				cases["that of the cluster of before"] = struct{ patch, want string }{sameCluster, ""}
				cases["that of the cluster in other lines"] = struct{ patch, want string }{speltCluster, ""}
			}
			for name, c := range cases {
				t.Run(contract+" "+string(role)+" "+name, func(t *testing.T) {
					g := NewWithT(t)
					plain, err := configgen.Render(in)
					g.Expect(err).NotTo(HaveOccurred())
					patched := in
					patched.StrategicPatches = []string{c.patch}
					_, renderErr := configgen.Render(patched)
					_, overlayErr := configgen.Overlay(plain, configgen.HostOverlay{StrategicPatches: []string{c.patch}})
					for _, err := range []error{renderErr, overlayErr} {
						if c.want == "" {
							g.Expect(err).NotTo(HaveOccurred())
						} else {
							g.Expect(err).To(MatchError(And(ContainSubstring("[0] does not apply: "), ContainSubstring(c.want))))
						}
					}
				})
			}
		}
	}
}

func TestPatchesDoNotTakeTheKeyOfACA(t *testing.T) {
	for path, want := range map[string]string{"/machine/ca/key": "machine.ca", "/cluster/ca/key": "cluster.ca", "/machine/ca": "machine.ca", "/cluster/ca": "cluster.ca"} {
		in := podInput("v1.13", configgen.RoleControlPlane)
		in.JSONPatches = [][]byte{[]byte(`{"op":"remove","path":"` + path + `"}`)}
		_, err := configgen.Render(in)
		NewWithT(t).Expect(err).To(MatchError(ContainSubstring("configPatches[0] (path "+path+") does not apply: it changes "+want)), path)
	}
}
