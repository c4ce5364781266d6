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
		Imports: []string{"bootstrap/api", "bootstrap/pkg", "infrastructure/api"},
	}))
	for _, provider := range list {
		g.Expect("../../../"+provider.Folder).To(BeADirectory(), provider.Name)
		g.Expect("../../../cmd/"+provider.Folder).To(BeADirectory(), provider.Name)
		g.Expect("../../../config/"+provider.Folder).To(BeADirectory(), provider.Name)
	}
	g.Expect(Provider{Name: "control-plane"}.Kind()).To(Equal("ControlPlaneProvider"))
	_, err = Read(t.TempDir())
	g.Expect(err).To(MatchError(ContainSubstring("clusterctl-settings.json")))
}

func TestAListThatCannotBeUsedIsRefused(t *testing.T) {
	for name, c := range map[string]struct{ list, message string }{
		"no list":             {`{}`, "empty"},
		"no JSON":             {`providers: []`, "invalid"},
		"another name":        {`{"providers": [{"name": "bootstrap"}]}`, "does not end with -talos"},
		"another folder":      {`{"providers": [{"name": "x-talos", "config": {"configFolder": "x"}}]}`, "is not config/<folder>/default"},
		"another components'": {`{"providers": [{"name": "x-talos", "config": {"configFolder": "config/x/default"}}]}`, "is not x-components.yaml"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := parse([]byte(c.list))
			NewWithT(t).Expect(err).To(MatchError(ContainSubstring(c.message)))
		})
	}
}
