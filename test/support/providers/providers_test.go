package providers

import (
	"testing"

	. "github.com/onsi/gomega"
)

func TestTheListIsThatOfTheRepository(t *testing.T) {
	g := NewWithT(t)
	list, err := Read("../../..")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(list).To(ContainElement(Provider{
		Name: "control-plane", Label: "control-plane-talos", Folder: "controlplane", ComponentsFile: "control-plane-components.yaml",
	}))
	g.Expect(list).To(ContainElement(Provider{
		Name: "backup", Label: "addon-talos-backup", Folder: "backup", ComponentsFile: "backup-components.yaml",
	}))
	for _, provider := range list {
		g.Expect("../../../"+provider.Folder).To(BeADirectory(), provider.Name)
		g.Expect("../../../cmd/"+provider.Folder).To(BeADirectory(), provider.Name)
		g.Expect("../../../config/"+provider.Folder).To(BeADirectory(), provider.Name)
	}
	_, err = Read(t.TempDir())
	g.Expect(err).To(MatchError(ContainSubstring("clusterctl-settings.json")))
}

func TestWhatClusterctlIsTold(t *testing.T) {
	for label, want := range map[string]struct{ flag, argument, kind string }{
		"control-plane-talos": {"control-plane", "talos", "ControlPlaneProvider"},
		"addon-talos":         {"addon", "talos", "AddonProvider"},
		"addon-talos-backup":  {"addon", "talos-backup", "AddonProvider"},
	} {
		t.Run(label, func(t *testing.T) {
			g, provider := NewWithT(t), Provider{Label: label}
			g.Expect(provider.Flag()).To(Equal(want.flag))
			g.Expect(provider.Argument()).To(Equal(want.argument))
			g.Expect(provider.Kind()).To(Equal(want.kind))
		})
	}
}

func TestAListThatCannotBeUsedIsRefused(t *testing.T) {
	for name, c := range map[string]struct{ list, message string }{
		"no list":             {`{}`, "empty"},
		"no JSON":             {`providers: []`, "invalid"},
		"another name":        {`{"providers": [{"name": "bootstrap"}]}`, "is neither <type>-talos nor <type>-talos-<name>"},
		"another word":        {`{"providers": [{"name": "addon-talosbackup"}]}`, "is neither <type>-talos nor <type>-talos-<name>"},
		"no type":             {`{"providers": [{"name": "talos-backup"}]}`, "is neither <type>-talos nor <type>-talos-<name>"},
		"no more name":        {`{"providers": [{"name": "addon-talos-"}]}`, "is neither <type>-talos nor <type>-talos-<name>"},
		"another folder":      {`{"providers": [{"name": "x-talos", "config": {"configFolder": "x"}}]}`, "is not config/<folder>/default"},
		"another components'": {`{"providers": [{"name": "x-talos", "config": {"configFolder": "config/x/default"}}]}`, "is not x-components.yaml"},
		"those of the type":   {`{"providers": [{"name": "x-talos-y", "config": {"configFolder": "config/y/default", "componentsFile": "x-components.yaml"}}]}`, "is not y-components.yaml"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := parse([]byte(c.list))
			NewWithT(t).Expect(err).To(MatchError(ContainSubstring(c.message)))
		})
	}
}
