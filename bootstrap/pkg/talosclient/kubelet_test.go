package talosclient

import (
	"testing"

	. "github.com/onsi/gomega"
)

func TestProviderID(t *testing.T) {
	for name, tt := range map[string]struct {
		spec, want string
		bad        bool
	}{
		"it is named":                {spec: "args: [--node-ip=10.0.0.1, --provider-id=talos://1]", want: "talos://1"},
		"the last of two counts":     {spec: "args: [--provider-id=talos://1, --provider-id=talos://2]", want: "talos://2"},
		"it is not named":            {spec: "args: [--node-ip=10.0.0.1]"},
		"another argument begins so": {spec: "args: [--provider-id-file=talos://1]"},
		"nothing is said":            {spec: "image: kubelet"},
		"it has another form":        {spec: "args: {a: b}", bad: true},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := providerID([]byte(tt.spec))
			NewWithT(t).Expect(err != nil).To(Equal(tt.bad))
			NewWithT(t).Expect(got).To(Equal(tt.want))
		})
	}
}
