package docs

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	coreconfig "github.com/siderolabs/talos/pkg/machinery/config"
	talossecrets "github.com/siderolabs/talos/pkg/machinery/config/generate/secrets"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	addonsv1 "sigs.k8s.io/cluster-api/api/addons/v1beta2"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/yaml"

	addonv1 "github.com/capi-talos/capi-talos/addons/api/v1alpha1"
	backupv1 "github.com/capi-talos/capi-talos/backup/api/v1alpha1"
	bootstrapv1 "github.com/capi-talos/capi-talos/bootstrap/api/v1beta1"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/configgen"
	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
)

// example is a fenced block of YAML on a page.
type example struct {
	page, text string
	// documents are its YAML documents.
	documents []string
}

func (e example) String() string { return e.page + ":\n" + e.text }

// examples are the blocks of YAML on all pages.
func examples(g Gomega) []example {
	pages, err := filepath.Glob("*.md")
	g.Expect(err).NotTo(HaveOccurred())
	kinds, err := filepath.Glob("kinds/*.md")
	g.Expect(err).NotTo(HaveOccurred())
	var all []example
	for _, page := range append(pages, kinds...) {
		text, err := os.ReadFile(page)
		g.Expect(err).NotTo(HaveOccurred())
		for _, block := range regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllStringSubmatch(string(text), -1) {
			all = append(all, example{page: page, text: block[1], documents: regexp.MustCompile(`(?m)^---$`).Split(block[1], -1)})
		}
	}

	return all
}

// comment is what the first lines of an example say about it.
func (e example) comment() string {
	return regexp.MustCompile(`\A(#[^\n]*\n)*`).FindString(e.text)
}

// contracts are those for which an example is: the ones that its comment names, else
// all of them.
func (e example) contracts() []string {
	if named := found(`\b(v1\.\d+)\b`, e.comment()); len(named) > 0 {
		return named
	}

	return configgen.Contracts()
}

// roles are those for which a patch is: the one that its comment names, else both.
func (e example) roles() []bootstrapv1.GenerateType {
	switch comment := e.comment(); {
	case strings.Contains(comment, "control plane"):
		return []bootstrapv1.GenerateType{bootstrapv1.GenerateTypeControlPlane}
	case strings.Contains(comment, "workers"):
		return []bootstrapv1.GenerateType{bootstrapv1.GenerateTypeWorker}
	default:
		return []bootstrapv1.GenerateType{bootstrapv1.GenerateTypeControlPlane, bootstrapv1.GenerateTypeWorker}
	}
}

// isPatch reports whether an example is a strategic merge patch of a machine
// configuration: sections of the v1alpha1 document, or documents of Talos.
func (e example) isPatch(g Gomega) bool {
	for _, document := range e.documents {
		fields := map[string]any{}
		g.Expect(yaml.Unmarshal([]byte(document), &fields)).To(Succeed(), e.String())
		if fields["kind"] != nil && fields["apiVersion"] == "v1alpha1" {
			return true
		}
		sections := len(fields) > 0
		for name := range fields {
			sections = sections && slices.Contains([]string{"machine", "cluster"}, name)
		}
		if sections {
			return true
		}
	}

	return false
}

// objects are the objects of Kubernetes in an example, strictly read.
func (e example) objects(g Gomega, scheme *runtime.Scheme) []runtime.Object {
	var all []runtime.Object
	if e.isPatch(g) {
		return nil
	}
	for _, document := range e.documents {
		kind := &runtime.TypeMeta{}
		g.Expect(yaml.Unmarshal([]byte(document), kind)).To(Succeed(), e.String())
		if kind.Kind == "" {
			continue
		}
		object, err := scheme.New(kind.GroupVersionKind())
		g.Expect(err).NotTo(HaveOccurred(), e.String())
		g.Expect(yaml.UnmarshalStrict([]byte(document), object)).To(Succeed(), "%s in %s", kind.Kind, e)
		all = append(all, object)
	}

	return all
}

func examplesScheme(g Gomega) *runtime.Scheme {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		addonv1.AddToScheme, backupv1.AddToScheme, bootstrapv1.AddToScheme, controlplanev1.AddToScheme, infrav1.AddToScheme, clusterv1.AddToScheme, addonsv1.AddToScheme, corev1.AddToScheme, rbacv1.AddToScheme,
	} {
		g.Expect(add(scheme)).To(Succeed())
	}

	return scheme
}

// TestExamplesAreObjectsOfOurs: each example with a kind has fields of that kind
// only.
func TestExamplesAreObjectsOfOurs(t *testing.T) {
	g := NewWithT(t)
	scheme, found := examplesScheme(g), 0
	for _, shown := range examples(g) {
		found += len(shown.objects(g, scheme))
	}
	g.Expect(found).NotTo(BeZero())
}

// TestExamplesOfPatchesAreAccepted: each patch that a page shows, by itself or in an
// object, is accepted for each contract, in the way in which admission judges it.
// Where a comment above it names contracts, it is refused for the others, or changes
// nothing there: a page sends nobody to another patch without need.
func TestExamplesOfPatchesAreAccepted(t *testing.T) {
	g := NewWithT(t)
	scheme, renderer, shown := examplesScheme(g), &renderer{bundles: map[string]*talossecrets.Bundle{}}, 0
	for _, one := range examples(g) {
		var renders []render
		if one.isPatch(g) {
			for _, role := range one.roles() {
				renders = append(renders, renderer.ofSpec(bootstrapv1.TalosConfigSpec{GenerateType: role, StrategicPatches: []string{one.text}}, ""))
			}
		}
		for _, object := range one.objects(g, scheme) {
			renders = append(renders, renderer.ofObject(object)...)
		}
		for _, render := range renders {
			for _, contract := range configgen.Contracts() {
				plain, patched, err := render(contract)
				if slices.Contains(one.contracts(), contract) {
					g.Expect(err).NotTo(HaveOccurred(), "contract %s, %s", contract, one)
					g.Expect(one.isPatch(g) && plain == patched).To(BeFalse(), "for contract %s it changes nothing: %s", contract, one)
				} else {
					g.Expect(err != nil || plain == patched).To(BeTrue(), "contract %s takes it too: %s", contract, one)
				}
			}
			shown++
		}
	}
	g.Expect(shown).NotTo(BeZero())
}

// render is the configuration for a contract, without and with patches.
type render func(contract string) (plain, patched string, err error)

// renderer renders as admission and the providers do. It keeps the keys that it makes
// for each contract.
type renderer struct {
	bundles map[string]*talossecrets.Bundle
}

// ofObject are the configurations that come of an object.
func (r *renderer) ofObject(object runtime.Object) []render {
	switch typed := object.(type) {
	case *controlplanev1.TalosControlPlane:
		return []render{r.ofSpec(typed.Spec.TalosConfigSpec, configgen.RoleControlPlane)}
	case *bootstrapv1.TalosConfig:
		return []render{r.ofSpec(typed.Spec, "")}
	case *bootstrapv1.TalosConfigTemplate:
		return []render{r.ofSpec(typed.Spec.Template.Spec, "")}
	case *infrav1.TalosHost:
		return []render{r.ofHost(typed, configgen.RoleControlPlane), r.ofHost(typed, configgen.RoleWorker)}
	default:
		return nil
	}
}

// ofSpec renders a specification that admission accepts.
func (r *renderer) ofSpec(spec bootstrapv1.TalosConfigSpec, role configgen.Role) render {
	return func(contract string) (plain, patched string, err error) {
		judged := spec.DeepCopy()
		judged.TalosVersion = contract
		if judged.GenerateType == "" {
			judged.GenerateType = bootstrapv1.GenerateType(role)
		}
		_, errs := configgen.JudgeTemplate(judged, field.NewPath("spec"), role)
		if err := errs.ToAggregate(); err != nil {
			return "", "", err
		}
		if patched, err = r.rendered(judged); err != nil {
			return "", "", err
		}
		judged.ConfigPatches, judged.StrategicPatches = nil, nil
		plain, err = r.rendered(judged)

		return plain, patched, err
	}
}

// ofHost renders what a host makes of a configuration.
func (r *renderer) ofHost(host *infrav1.TalosHost, role configgen.Role) render {
	return func(contract string) (plain, patched string, err error) {
		plain, err = r.rendered(&bootstrapv1.TalosConfigSpec{GenerateType: bootstrapv1.GenerateType(role), TalosVersion: contract})
		if err != nil {
			return "", "", err
		}
		overlay := configgen.HostOverlay{StrategicPatches: host.Spec.StrategicPatches, InstallDisk: host.Spec.Install.Disk, InstallImage: host.Spec.Install.Image, Release: contract + ".0"}
		if network := host.Spec.Network; len(network.Addresses) > 0 {
			overlay.Network = &configgen.StaticNetwork{
				Interface: network.Interface, HardwareAddress: network.MACAddress, Addresses: network.Addresses, Gateway: network.Gateway, Nameservers: network.Nameservers,
			}
		}
		overlaid, err := configgen.Overlay([]byte(plain), overlay)

		return plain, string(overlaid), err
	}
}

func (r *renderer) rendered(spec *bootstrapv1.TalosConfigSpec) (string, error) {
	input, err := configgen.FromSpec(spec)
	if err != nil {
		return "", err
	}
	if r.bundles[spec.TalosVersion] == nil {
		contract, err := coreconfig.ParseContractFromVersion(spec.TalosVersion)
		if err != nil {
			return "", fmt.Errorf("reading the contract: %w", err)
		}
		if r.bundles[spec.TalosVersion], err = talossecrets.NewBundle(talossecrets.NewFixedClock(time.Unix(0, 0)), contract); err != nil {
			return "", fmt.Errorf("making keys: %w", err)
		}
	}
	input.Secrets = r.bundles[spec.TalosVersion]
	input.ClusterName, input.Endpoint, input.KubernetesVersion, input.Hostname = "demo", "https://192.0.2.1:6443", "v1.35.0", "demo"
	rendered, err := configgen.Render(input)

	return string(rendered), err
}
