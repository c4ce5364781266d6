package configgen_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	bootstrapv1 "github.com/capi-talos/capi-talos/bootstrap/api/v1beta1"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/configgen"
)

const (
	tooManyKeys = "too many keys in a map"
	tooOften    = "take too long, because all of it is read after each; use fewer, or state what is long in strategicPatches"
	tooLarge    = "it is too large when its aliases are written out"
	tooLong     = "longer than 1048576 bytes, which no Secret holds; bring long content to the cluster in another way, for instance with a ClusterResourceSet"
)

// aliases is a small patch that states a text of 130 kB several times.
func aliases(times int) string {
	patch := "machine: {sysctls: {a: &a \"" + strings.Repeat("x", 130_000) + "\""
	for i := range times - 1 {
		patch += fmt.Sprintf(", b%d: *a", i)
	}

	return patch + "}}"
}

// sysctl is a patch that states one text of 130 kB.
func sysctl(name int) string {
	return fmt.Sprintf("machine: {sysctls: {s%d: %q}}", name, strings.Repeat("x", 130_000))
}

// doubling copies the configuration of the kubelet into itself.
func doubling(times int) [][]byte {
	operations := [][]byte{fmt.Appendf(nil, `{"op":"add","path":"/machine/kubelet/extraConfig","value":{"a":%q}}`, strings.Repeat("x", 100_000))}
	for i := range times {
		operations = append(operations, fmt.Appendf(nil, `{"op":"copy","from":"/machine/kubelet/extraConfig","path":"/machine/kubelet/extraConfig/b%d"}`, i))
	}

	return operations
}

// nested is a value in that many maps of the kubelet's configuration.
func nested(levels int) string {
	return strings.Repeat(`{"a":`, levels) + "1" + strings.Repeat("}", levels)
}

// keys are the body of a map of so many, in either language.
func keys(from, number int) string {
	var text strings.Builder
	for i := range number {
		fmt.Fprintf(&text, `,"k%d":"a"`, from+i)
	}

	return strings.TrimPrefix(text.String(), ",")
}

// addSysctls is a JSON patch that states so many sysctls.
func addSysctls(number int) []byte {
	return fmt.Appendf(nil, `{"op":"add","path":"/machine/sysctls","value":{%s}}`, keys(0, number))
}

// copies are a JSON patch, and so many that copy the sysctls.
func copies(first []byte, times int) [][]byte {
	operations := [][]byte{first, []byte(`{"op":"add","path":"/machine/kubelet/extraConfig","value":{}}`)}
	for i := range times {
		operations = append(operations, fmt.Appendf(nil, `{"op":"copy","from":"/machine/sysctls","path":"/machine/kubelet/extraConfig/b%d"}`, i))
	}

	return operations
}

func TestSmallPatchesThatStandForMuchAreRefused(t *testing.T) {
	type patches struct {
		json      [][]byte
		strategic []string
	}
	many := make([]string, 0, 9)
	for i := range 9 {
		many = append(many, sysctl(i))
	}
	for name, c := range map[string]struct {
		patches
		index int
		want  string // Empty when taken.
	}{
		"many keys":                    {patches{strategic: []string{"machine: {sysctls: {" + keys(0, 4000) + "}}"}}, 0, ""},
		"many keys of JSON":            {patches{json: [][]byte{addSysctls(4000)}}, 0, ""},
		"too many keys":                {patches{strategic: []string{"machine: {sysctls: {" + keys(0, 6000) + "}}"}}, 0, tooManyKeys},
		"too many keys of JSON":        {patches{json: [][]byte{addSysctls(6000)}}, 0, tooManyKeys},
		"copies of many keys":          {patches{json: copies(addSysctls(4000), 8)}, 7, tooManyKeys},
		"very many patches":            {patches{json: slices.Repeat([][]byte{[]byte(`{"op":"test","path":"/machine/type","value":"worker"}`)}, 256)}, 0, ""},
		"aliases":                      {patches{strategic: []string{sysctl(0), aliases(9)}}, 1, tooLarge},
		"aliases of little":            {patches{strategic: []string{aliases(7)}}, 0, ""},
		"aliases in a second document": {patches{strategic: []string{"machine: {certSANs: [a]}\n---\napiVersion: v1alpha1\nkind: KubeletConfig\n---\n" + aliases(9)}}, 0, tooLarge},
		"what is very deep":            {patches{strategic: []string{"machine: {kubelet: {extraConfig: " + nested(5000) + "}}"}}, 0, tooLarge},
		"many patches":                 {patches{strategic: many}, 8, tooLong},
		"patches that replace others":  {patches{strategic: []string{sysctl(1), sysctl(1), sysctl(1), sysctl(1), sysctl(1), sysctl(1), sysctl(1), sysctl(1), sysctl(1)}}, 0, ""},
		"copies":                       {patches{json: doubling(5)}, 4, tooLong},
		"a copy that is not read":      {patches{json: append(doubling(3), []byte(`{"op":"copy","from":"/machine/kubelet/extraConfig","path":"/machine/nope"}`))}, 4, tooLong},
		"few copies":                   {patches{json: doubling(3)}, 0, ""},
		"a deep value":                 {patches{json: [][]byte{fmt.Appendf(nil, `{"op":"add","path":"/machine/kubelet/extraConfig","value":%s}`, nested(5000))}}, 0, tooLarge},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			in := podInput("v1.13", configgen.RoleWorker)
			in.JSONPatches, in.StrategicPatches = c.json, c.strategic
			_, err := configgen.Render(in)
			if c.want == "" {
				g.Expect(err).NotTo(HaveOccurred())
				return
			}
			var patchError *configgen.PatchError
			g.Expect(errors.As(err, &patchError)).To(BeTrue(), "%v", err)
			g.Expect(patchError).To(And(HaveField("Index", c.index), HaveField("Applies", false)), "it goes no further")
			g.Expect(err).To(MatchError(ContainSubstring(c.want)))
		})
	}
}

// TestVeryManyLongPatchesAreRefusedAtAdmission: what was admitted before is rendered.
func TestVeryManyLongPatchesAreRefusedAtAdmission(t *testing.T) {
	g := NewWithT(t)
	long := strings.Repeat("x", 900_000)
	spec := &bootstrapv1.TalosConfigSpec{GenerateType: bootstrapv1.GenerateTypeWorker, TalosVersion: "v1.13"}
	spec.ConfigPatches = slices.Repeat([]bootstrapv1.ConfigPatch{{Op: "add", Path: "/machine/sysctls", Value: &apiextensionsv1.JSON{Raw: []byte(`{"a":"` + long + `"}`)}}}, 40)
	errs := configgen.FieldErrors(spec, field.NewPath("spec"))
	g.Expect(errs.ToAggregate()).To(MatchError(And(ContainSubstring("spec.configPatches[37]"), ContainSubstring(tooOften))))
	in := podInput("v1.13", configgen.RoleWorker)
	in.JSONPatches = slices.Repeat([][]byte{fmt.Appendf(nil, `{"op":"add","path":"/machine/sysctls","value":{"a":%q}}`, long)}, 40)
	_, err := configgen.Render(in)
	g.Expect(err).NotTo(HaveOccurred())
}

// TestPatchesThatAddUpToVeryManyKeysAreRefused: each alone would be taken.
func TestPatchesThatAddUpToVeryManyKeysAreRefused(t *testing.T) {
	g := NewWithT(t)
	in := podInput("v1.13", configgen.RoleWorker)
	for i := range 8 {
		in.StrategicPatches = append(in.StrategicPatches, "machine: {sysctls: {"+keys(i*4000, 4000)+"}}")
	}
	_, err := configgen.Render(in)
	var patchError *configgen.PatchError
	g.Expect(errors.As(err, &patchError)).To(BeTrue(), "%v", err)
	g.Expect(patchError).To(And(HaveField("Index", 2), HaveField("Applies", true)))
	g.Expect(err).To(MatchError(ContainSubstring(tooManyKeys)))
}

// Hosts that were stored before are read as well.
func TestSmallHostPatchesThatStandForMuchAreRefused(t *testing.T) {
	g := NewWithT(t)
	rendered, err := configgen.Render(podInput("v1.13", configgen.RoleWorker))
	g.Expect(err).NotTo(HaveOccurred())
	_, err = configgen.Overlay(rendered, configgen.HostOverlay{StrategicPatches: []string{aliases(7)}})
	g.Expect(err).NotTo(HaveOccurred())
	_, err = configgen.Overlay(rendered, configgen.HostOverlay{StrategicPatches: []string{aliases(9)}})
	g.Expect(err).To(MatchError(And(ContainSubstring("strategicPatches of the host[0]"), ContainSubstring(tooLarge))))
}

func TestDataThatStandsForMuchIsRefused(t *testing.T) {
	rendered, err := configgen.Render(podInput("v1.13", configgen.RoleWorker))
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	with := func(times int) []byte {
		section, _ := strings.CutPrefix(aliases(times), "machine: {")
		return []byte(strings.Replace(string(rendered), "machine:\n", "machine:\n    "+strings.TrimSuffix(section, "}")+"\n", 1))
	}
	for name, c := range map[string]struct {
		data []byte
		want string
	}{
		"little":                  {with(7), ""},
		"more than a Secret":      {with(9), tooLong},
		"more than is to be read": {with(40), tooLarge},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			rendered, err := configgen.Render(configgen.Input{Data: c.data})
			if c.want == "" {
				g.Expect(err).NotTo(HaveOccurred())
				_, err = configgen.Overlay(rendered, configgen.HostOverlay{ProviderID: "talos://6f1c"})
				g.Expect(err).NotTo(HaveOccurred(), "what was rendered can be overlaid")
				return
			}
			g.Expect(err).To(MatchError(ContainSubstring(c.want)))
		})
	}
	_, err = configgen.Describe(with(40))
	NewWithT(t).Expect(err).To(MatchError(ContainSubstring(tooLarge)))
}

// The bound on what is read is for what a text stands for: it must not refuse what was
// rendered, of however many small values.
func TestWhatWasRenderedIsRead(t *testing.T) {
	g := NewWithT(t)
	in := podInput("v1.14", configgen.RoleWorker)
	for name := range 2 {
		items := "[" + strings.Repeat("1,", 32_000) + "1]"
		in.StrategicPatches = append(in.StrategicPatches, fmt.Sprintf("apiVersion: v1alpha1\nkind: KubeletConfig\nconfig: {a%d: %s}\n", name, items))
	}
	rendered, err := configgen.Render(in)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(len(rendered)).To(BeNumerically(">", 1<<19))
	_, err = configgen.Overlay(rendered, configgen.HostOverlay{ProviderID: "talos://6f1c"})
	g.Expect(err).NotTo(HaveOccurred())
}

// TestAHostMayAddToALongConfiguration: only what is stored is held to what a Secret holds.
func TestAHostMayAddToALongConfiguration(t *testing.T) {
	g := NewWithT(t)
	in := podInput("v1.13", configgen.RoleWorker)
	in.StrategicPatches = []string{"machine: {sysctls: {a: " + strings.Repeat("x", 1000<<10) + "}}"}
	rendered, err := configgen.Render(in)
	g.Expect(err).NotTo(HaveOccurred())
	overlaid, err := configgen.Overlay(rendered, configgen.HostOverlay{StrategicPatches: []string{"machine: {sysctls: {b: " + strings.Repeat("y", 100<<10) + "}}"}})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(len(overlaid)).To(BeNumerically(">", 1<<20))
	more := make([]string, 0, 4)
	for i := range 4 {
		more = append(more, fmt.Sprintf("machine: {sysctls: {c%d: %s}}", i, strings.Repeat("y", 1000<<10)))
	}
	_, err = configgen.Overlay(rendered, configgen.HostOverlay{StrategicPatches: more})
	g.Expect(err).To(MatchError(ContainSubstring("would be longer than 4194304 bytes; bring long content")))
}
