package webhooks

import (
	"fmt"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	admissionv1 "k8s.io/api/admission/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	bootstrapv1 "github.com/capi-talos/capi-talos/bootstrap/api/v1beta1"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/configgen"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/secrets"
)

// The tests of this file are named after the rows of docs/bad-input.md.

// worker and controlPlane are specs with strategic patches.
func worker(contract string, patches ...string) bootstrapv1.TalosConfigSpec {
	return bootstrapv1.TalosConfigSpec{GenerateType: bootstrapv1.GenerateTypeWorker, TalosVersion: contract, StrategicPatches: patches}
}

func controlPlane(contract string, patches ...string) bootstrapv1.TalosConfigSpec {
	spec := worker(contract, patches...)
	spec.GenerateType = bootstrapv1.GenerateTypeControlPlane
	return spec
}

func withJSON(spec bootstrapv1.TalosConfigSpec, op, path, value string) bootstrapv1.TalosConfigSpec {
	patch := bootstrapv1.ConfigPatch{Op: op, Path: path}
	if value != "" {
		patch.Value = &apiextensionsv1.JSON{Raw: []byte(value)}
	}
	spec.ConfigPatches = append(spec.ConfigPatches, patch)
	return spec
}

// data is a spec with the complete configuration of a machine.
func data(t *testing.T, role configgen.Role, hostname string, edit ...string) bootstrapv1.TalosConfigSpec {
	t.Helper()
	g := NewWithT(t)
	bundle, err := secrets.NewBundle(time.Unix(1<<30, 0), "v1.13", nil)
	g.Expect(err).NotTo(HaveOccurred())
	rendered, err := configgen.Render(configgen.Input{
		Role: role, Contract: "v1.13", ClusterName: "one", Endpoint: "https://10.0.0.1:6443", KubernetesVersion: "v1.36.3",
		Secrets: bundle.Machinery(), Hostname: hostname,
	})
	g.Expect(err).NotTo(HaveOccurred())
	return bootstrapv1.TalosConfigSpec{GenerateType: bootstrapv1.GenerateTypeNone, TalosVersion: "v1.13", Data: strings.NewReplacer(edit...).Replace(string(rendered))}
}

type admissionCase struct {
	spec bootstrapv1.TalosConfigSpec
	// want are parts of the refusal.
	want []string
}

func expectRefusals(t *testing.T, cases map[string]admissionCase) {
	t.Helper()
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) { expectAdmission(t, tc.spec, tc.want...) })
	}
}

func TestBadInputBrokenStrategicPatchIsRefused(t *testing.T) {
	const fine = "machine: {sysctls: {a: b}}"
	expectRefusals(t, map[string]admissionCase{
		"no YAML":          {worker("v1.13", fine, "machine: ["), []string{"spec.strategicPatches[1]: Invalid value: strategicPatches[1] line 2 does not apply: "}},
		"an unknown field": {worker("v1.13", fine, "\nmachine: {colour: red}"), []string{"spec.strategicPatches[1]: Invalid value: strategicPatches[1] line 2 does not apply: ", "unknown keys found"}},
		"an unknown document": {worker("v1.14", "apiVersion: v1alpha1\nkind: ColourConfig\n"), []string{
			"spec.strategicPatches[0]", `"ColourConfig" "v1alpha1": not registered`}},
		"a JSON patch":                     {worker("v1.13", `[{"op": "remove", "path": "/machine"}]`), []string{"spec.strategicPatches[0]", "it is a JSON patch; use configPatches for those"}},
		"a value that Talos refuses":       {worker("v1.13", fine, "machine: {nodeLabels: {\"/\": a}}", fine), []string{"spec.strategicPatches[1]: Invalid value: strategicPatches[1] makes a machine configuration that is not valid: "}},
		"the role":                         {worker("v1.13", "machine: {type: controlplane}"), []string{"spec.strategicPatches[0]", "it changes machine.type"}},
		"the role, to one that bootstraps": {controlPlane("v1.13", "machine: {type: init}"), []string{"spec.strategicPatches[0]", "it changes machine.type"}},
		"a document of a newer Talos":      {worker("v1.13", "apiVersion: v1alpha1\nkind: SysctlConfig\nparams: {a: b}\n"), []string{"spec.strategicPatches[0]", "the document SysctlConfig is not known to Talos v1.13, it came with v1.14"}},
		"aliases that stand for much":      {worker("v1.13", fine, aliases(9)), []string{"spec.strategicPatches[1]: Invalid value: strategicPatches[1] does not apply: it is too large when its aliases are written out"}},
		"aliases that stand for little":    {worker("v1.13", fine, aliases(7)), []string{""}},
		"a CA, which may be the cluster's": {worker("v1.13", fine, "machine: {ca: {crt: YQ==}}"), []string{""}},
		"a CA that is accepted as well":    {worker("v1.13", fine, "machine: {acceptedCAs: [{crt: YQ==}]}"), []string{""}},
		"a field of a newer Talos":         {worker("v1.12", "apiVersion: v1alpha1\nkind: VolumeConfig\nname: EPHEMERAL\nmount: {secure: true}\n"), []string{"spec.strategicPatches[0]", "the field mount of the document VolumeConfig is not known to Talos v1.12, it came with v1.13"}},
	})
}

// aliases is a patch that states a text of 130 kB several times.
func aliases(times int) string {
	patch := "machine: {sysctls: {a: &a \"" + strings.Repeat("x", 130_000) + "\""
	for i := range times - 1 {
		patch += fmt.Sprintf(", b%d: *a", i)
	}
	return patch + "}}"
}

func TestBadInputCNIOfWhatInstallsNoneIsRefused(t *testing.T) {
	with := func(spec bootstrapv1.TalosConfigSpec, cni bootstrapv1.CNI) bootstrapv1.TalosConfigSpec {
		spec.CNI = cni
		return spec
	}
	const refusal = "spec.cni: Forbidden: is for generateType controlplane alone"
	expectRefusals(t, map[string]admissionCase{
		"of a worker":              {with(worker("v1.13"), bootstrapv1.CNINone), []string{refusal}},
		"of a worker, the default": {with(worker("v1.13"), bootstrapv1.CNIFlannel), []string{refusal}},
		"beside data":              {with(data(t, configgen.RoleControlPlane, ""), bootstrapv1.CNINone), []string{refusal}},
		"Flannel configured where it is left out": {with(controlPlane("v1.13", "cluster: {network: {cni: {flannel: {kubeNetworkPoliciesEnabled: true}}}}"), bootstrapv1.CNINone), []string{
			"spec.strategicPatches[0]", `should not be enabled for "none" CNI`}},
	})
}

func TestBadInputJSONPatchWithAWrongPathIsRefused(t *testing.T) {
	fine := withJSON(worker("v1.13"), "add", "/machine/sysctls", `{"a":"b"}`)
	expectRefusals(t, map[string]admissionCase{
		"replaced":                   {withJSON(fine, "replace", "/machine/none", `1`), []string{"spec.configPatches[1]: Invalid value: configPatches[1] (path /machine/none) does not apply: "}},
		"removed":                    {withJSON(fine, "remove", "/machine/none", ""), []string{"spec.configPatches[1]: Invalid value: configPatches[1] (path /machine/none) does not apply: "}},
		"added":                      {withJSON(fine, "add", "/machine/colour", `"red"`), []string{"spec.configPatches[1]: Invalid value: configPatches[1] (path /machine/colour) does not apply: ", "unknown keys found"}},
		"without a value":            {withJSON(fine, "add", "/machine/certSANs", ""), []string{"spec.configPatches[1].value: Required value: add, replace and test need one, and none is null; to take a field away use op: remove"}},
		"replaced without a value":   {withJSON(fine, "replace", "/machine/sysctls", ""), []string{"spec.configPatches[1].value: Required value"}},
		"tested without a value":     {withJSON(fine, "test", "/machine/sysctls", ""), []string{"spec.configPatches[1].value: Required value"}},
		"with null":                  {withJSON(fine, "add", "/machine/certSANs", "null"), []string{"spec.configPatches[1].value: Required value"}},
		"with a value that is empty": {withJSON(fine, "add", "/machine/certSANs", "[]"), []string{""}},
		"removed, without a value":   {withJSON(fine, "remove", "/machine/sysctls", ""), []string{""}},
		"a value that stands for much": {withJSON(fine, "add", "/machine/kubelet/extraConfig", strings.Repeat(`{"a":`, 5000)+"1"+strings.Repeat("}", 5000)), []string{
			"spec.configPatches[1]", "it is too large"}},
		"of a section that is a document": {withJSON(worker("v1.14"), "add", "/machine/kubelet/extraArgs", `{}`), []string{
			"spec.configPatches[0]: Invalid value: configPatches[0] (path /machine/kubelet/extraArgs) does not apply: ", "use strategicPatches for those"}},
	})
}

func TestBadInputASectionInBothFormsIsRefused(t *testing.T) {
	const fine = "machine: {certSANs: [a.example]}"
	expectRefusals(t, map[string]admissionCase{
		"the section where the contract has the document": {worker("v1.14", fine, "machine: {kubelet: {extraArgs: {v: \"2\"}}}"), []string{
			"spec.strategicPatches[1]: Invalid value: strategicPatches[1] makes a machine configuration that is not valid: ", "the document KubeletConfig", ".machine.kubelet"}},
		"the same by a JSON patch": {withJSON(worker("v1.14"), "add", "/machine/kubelet", `{"extraArgs":{"v":"2"}}`), []string{
			"spec.configPatches[0]: Invalid value: configPatches[0] (path /machine/kubelet) makes a machine configuration that is not valid: ", "the document KubeletConfig", ".machine.kubelet"}},
		"the document after the section": {worker("v1.12", "machine: {time: {servers: [a.example]}}", "apiVersion: v1alpha1\nkind: TimeSyncConfig\nntp: {servers: [a.example]}\n"), []string{
			"spec.strategicPatches[1]", "the document TimeSyncConfig", "machine.time"}},
		"the section after the document": {controlPlane("v1.13", "apiVersion: v1alpha1\nkind: ResolverConfig\nnameservers: [{address: 10.0.0.2}]\n", "machine: {network: {nameservers: [10.0.0.3]}}"), []string{
			"spec.strategicPatches[1]", "the document ResolverConfig", ".machine.network.nameservers"}},
	})
}

func TestBadInputDataThatIsNoMachineConfigIsRefused(t *testing.T) {
	none := func(text string) bootstrapv1.TalosConfigSpec {
		return bootstrapv1.TalosConfigSpec{GenerateType: bootstrapv1.GenerateTypeNone, TalosVersion: "v1.13", Data: text}
	}
	expectRefusals(t, map[string]admissionCase{
		"nothing":          {none(""), []string{"spec.data: Required value: must be a complete machine configuration"}},
		"other YAML":       {none("a: b"), []string{"spec.data: Invalid value: the machine configuration is not valid"}},
		"a fragment":       {none("version: v1alpha1\nmachine: {sysctls: {a: b}}\n"), []string{"spec.data", "cluster instructions are required"}},
		"an init machine":  {data(t, configgen.RoleControlPlane, "", "type: controlplane", "type: init"), []string{"spec.data", "use controlplane, the control plane provider bootstraps etcd"}},
		"of a newer Talos": {data(t, configgen.RoleWorker, "", "version: v1alpha1", "version: v1alpha1\n---\napiVersion: v1alpha1\nkind: SysctlConfig\nparams: {a: b}\n---\n"), []string{"spec.data"}},
		"that stands for much": {data(t, configgen.RoleWorker, "", "machine:\n", "machine:\n    "+strings.TrimSuffix(strings.TrimPrefix(aliases(40), "machine: {"), "}")+"\n"), []string{
			"spec.data: Invalid value: the machine configuration is not valid: data is no machine configuration: it is too large"}},
		"that is longer than a Secret": {data(t, configgen.RoleWorker, "", "machine:\n", "machine:\n    "+strings.TrimSuffix(strings.TrimPrefix(aliases(9), "machine: {"), "}")+"\n"), []string{
			"spec.data: Invalid value: the machine configuration is not valid: the machine configuration would be longer than 1048576 bytes"}},
		"data for another type": {bootstrapv1.TalosConfigSpec{GenerateType: "worker", TalosVersion: "v1.13", Data: "a: b"}, []string{"spec.data: Forbidden: is for generateType none alone"}},
		"the type init":         {bootstrapv1.TalosConfigSpec{GenerateType: "init", TalosVersion: "v1.13"}, []string{`spec.generateType: Unsupported value: "init": supported values: "controlplane", "worker", "none"`}},
	})
}

// What is made from a template is known by its user: here a control plane.
func TestBadInputDataForTheOtherRoleIsRefused(t *testing.T) {
	g := NewWithT(t)
	for role, other := range map[configgen.Role]configgen.Role{
		configgen.RoleControlPlane: configgen.RoleWorker, configgen.RoleWorker: configgen.RoleControlPlane,
	} {
		spec := data(t, other, "")
		_, errs := configgen.JudgeTemplate(&spec, nil, role)
		g.Expect(errs.ToAggregate()).To(MatchError(And(ContainSubstring("data: Invalid value: configures a "+string(other)), ContainSubstring("state the configuration of a "+string(role)))))
		spec = bootstrapv1.TalosConfigSpec{GenerateType: bootstrapv1.GenerateType(other), TalosVersion: "v1.13"}
		_, errs = configgen.JudgeTemplate(&spec, nil, role)
		g.Expect(errs.ToAggregate()).To(MatchError(ContainSubstring("generateType: Invalid value: \"" + string(other) + "\": must be " + string(role))))

		spec = data(t, role, "")
		_, errs = configgen.JudgeTemplate(&spec, nil, role)
		g.Expect(errs).To(BeEmpty())
	}
}

func TestBadInputTalosVersionMissingOrUnsupportedIsRefused(t *testing.T) {
	const supported = `supported values: "v1.12", "v1.13", "v1.14"`
	cases := map[string]admissionCase{"missing": {worker(""), []string{"spec.talosVersion: Required value: must be the configuration contract: one of v1.12, v1.13, v1.14"}}}
	for _, version := range []string{"v1.11", "v1.15", "v2.13", "latest", "v1", "v1.11.6"} {
		cases[version] = admissionCase{worker(version), []string{"spec.talosVersion: Unsupported value: \"" + version + `": ` + supported}}
	}
	expectRefusals(t, cases)
}

func TestBadInputControlPlaneHostNameIsRefused(t *testing.T) {
	const (
		document = "apiVersion: v1alpha1\nkind: HostnameConfig\nauto: off\nhostname: mine\n"
		words    = "it sets the host name of a control plane machine, which must be the name of its Machine; remove it from the patch"
	)
	infrastructure := controlPlane("v1.13")
	infrastructure.Hostname.Source = bootstrapv1.HostnameSourceInfrastructureName
	cases := map[string]admissionCase{"by its source": {infrastructure, []string{"spec.hostname.source: Invalid value: \"InfrastructureName\": must be MachineName"}}}
	for _, contract := range configgen.Contracts() {
		for name, tc := range map[string]admissionCase{
			"by a section":                     {controlPlane(contract, "machine: {certSANs: [a]}", "machine: {network: {hostname: mine}}"), []string{"spec.strategicPatches[1]", words}},
			"by a document":                    {controlPlane(contract, document), []string{"spec.strategicPatches[0]", words}},
			"by a JSON patch":                  {withJSON(controlPlane(contract), "add", "/machine/network", `{"hostname":"mine"}`), []string{"spec.configPatches[0]", words}},
			"by the name that a trial chooses": {withJSON(controlPlane(contract), "add", "/machine/network", `{"hostname":"trial"}`), []string{"spec.configPatches[0]", words}},
		} {
			cases[name+", "+contract] = tc
		}
	}
	expectRefusals(t, cases)

	// Of data a TalosConfig says nothing at admission: its Machine may have that
	// name. What several Machines are made from cannot be right.
	g := NewWithT(t)
	spec := data(t, configgen.RoleControlPlane, "mine")
	_, err := (&TalosConfig{}).ValidateCreate(t.Context(), &bootstrapv1.TalosConfig{Spec: spec})
	g.Expect(err).NotTo(HaveOccurred())
	section := data(t, configgen.RoleControlPlane, "", "\nmachine:\n", "\nmachine:\n    network: {hostname: mine}\n", "apiVersion: v1alpha1\nkind: HostnameConfig\nauto: stable\n", "")
	section.Hostname.Source = bootstrapv1.HostnameSourceMachineName
	_, err = (&TalosConfig{}).ValidateCreate(t.Context(), &bootstrapv1.TalosConfig{Spec: section})
	g.Expect(err).NotTo(HaveOccurred(), "also beside a source, which is that name")
	template := &bootstrapv1.TalosConfigTemplate{}
	template.Spec.Template.Spec = spec
	_, err = (&TalosConfigTemplate{}).ValidateCreate(t.Context(), template)
	g.Expect(err).To(MatchError(ContainSubstring(`spec.template.spec.data: Invalid value: sets the host name "mine" of control plane machines`)))
}

func TestBadInputImmutableFieldsAreRefused(t *testing.T) {
	// Both name the way out.
	const immutable = "is immutable"
	before := bootstrapv1.TalosConfigSpec{GenerateType: "worker", TalosVersion: "v1.13"}
	after := bootstrapv1.TalosConfigSpec{GenerateType: "worker", TalosVersion: "v1.14"}
	broken := bootstrapv1.TalosConfigSpec{GenerateType: "worker", TalosVersion: "v1.14", StrategicPatches: []string{"?"}}
	for name, tc := range map[string]struct {
		after  bootstrapv1.TalosConfigSpec
		meta   metav1.ObjectMeta
		dryRun bool
		want   string
	}{
		"nothing":                            {after: before},
		"the contract":                       {after: after, want: immutable},
		"the contract in a dry run":          {after: after, dryRun: true, want: immutable},
		"in a topology dry run":              {after: after, dryRun: true, meta: topologyDryRun()},
		"in a topology run that is none":     {after: after, meta: topologyDryRun(), want: immutable},
		"brokenly in a topology dry run":     {after: broken, dryRun: true, meta: topologyDryRun(), want: "strategicPatches[0]"},
		"anything while it is being deleted": {after: after, meta: metav1.ObjectMeta{DeletionTimestamp: ptr.To(metav1.Unix(1, 0))}},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			ctx := admission.NewContextWithRequest(t.Context(), admission.Request{AdmissionRequest: admissionv1.AdmissionRequest{DryRun: ptr.To(tc.dryRun)}})
			_, err := (&TalosConfig{}).ValidateUpdate(ctx,
				&bootstrapv1.TalosConfig{Spec: before}, &bootstrapv1.TalosConfig{ObjectMeta: tc.meta, Spec: tc.after})
			expect(g, err, tc.want)
			old, changed := &bootstrapv1.TalosConfigTemplate{}, &bootstrapv1.TalosConfigTemplate{ObjectMeta: tc.meta}
			old.Spec.Template.Spec, changed.Spec.Template.Spec = before, tc.after
			_, err = (&TalosConfigTemplate{}).ValidateUpdate(ctx, old, changed)
			expect(g, err, tc.want)
		})
	}
}

// TestAHostNameIsOfOneMachine: what a template sets, every machine that is made from it has.
func TestAHostNameIsOfOneMachine(t *testing.T) {
	const (
		section  = "machine: {network: {hostname: w}}"
		document = "apiVersion: v1alpha1\nkind: HostnameConfig\nauto: off\nhostname: w\n"
		removed  = "apiVersion: v1alpha1\nkind: HostnameConfig\n$patch: delete\n"
		shared   = `sets the host name "w" of every machine made from the template: more than one would be one Node; remove it, and set hostname.source, or name the host in the TalosHost's strategicPatches`
	)
	named := func(spec bootstrapv1.TalosConfigSpec) bootstrapv1.TalosConfigSpec {
		spec.Hostname.Source = bootstrapv1.HostnameSourceMachineName
		return spec
	}
	withDocument := data(t, configgen.RoleWorker, "")
	withDocument.StrategicPatches = []string{document}
	withSection := data(t, configgen.RoleWorker, "", "\nmachine:\n", "\nmachine:\n    network: {hostname: w}\n", "apiVersion: v1alpha1\nkind: HostnameConfig\nauto: stable\n", "")
	// Parts of the refusal, and of the warning; empty where there is none.
	for name, tc := range map[string]struct {
		spec             bootstrapv1.TalosConfigSpec
		refusal, warning string
	}{
		"a section":             {worker("v1.13", removed, section), "", "spec.template.spec.strategicPatches[1]: " + shared},
		"a document":            {worker("v1.14", document, "machine: {certSANs: [a]}"), "", "spec.template.spec.strategicPatches[0]: " + shared},
		"none":                  {worker("v1.13", "apiVersion: v1alpha1\nkind: HostnameConfig\nauto: stable\n"), "", ""},
		"one that is removed":   {worker("v1.13", document, removed), "", ""},
		"data":                  {data(t, configgen.RoleWorker, "w"), "", "spec.template.spec.data: " + shared},
		"data and a patch":      {withDocument, "", "spec.template.spec.strategicPatches[0]: " + shared},
		"data without":          {data(t, configgen.RoleWorker, ""), "", ""},
		"a source":              {named(worker("v1.13")), "", ""},
		"a source and a patch":  {named(worker("v1.13", removed, section)), "", "spec.template.spec.strategicPatches[1]: " + shared},
		"the name of the trial": {worker("v1.13", strings.ReplaceAll(document, "w", "trial")), "", `spec.template.spec.strategicPatches[0]: sets the host name "trial"`},
		// The source goes before a document, and a Machine may have the name that data states.
		"a source and a document":        {named(worker("v1.13", document)), "", ""},
		"a source and data":              {named(data(t, configgen.RoleWorker, "w")), "", ""},
		"a source and a section in data": {named(withSection), "", "spec.template.spec.data: " + shared},
		"a source and a control plane":   {named(controlPlane("v1.13")), "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			_, err := (&TalosConfig{}).ValidateCreate(t.Context(), &bootstrapv1.TalosConfig{Spec: tc.spec})
			expect(g, err, tc.refusal)
			template := &bootstrapv1.TalosConfigTemplate{}
			template.Spec.Template.Spec = tc.spec
			warnings, err := (&TalosConfigTemplate{}).ValidateCreate(t.Context(), template)
			expect(g, err, tc.refusal)
			if tc.warning == "" {
				g.Expect(warnings).To(BeEmpty())
			} else {
				g.Expect(warnings).To(ConsistOf(HavePrefix(tc.warning)))
			}
		})
	}
}

// TestWhatIsMadeFromATemplateIsNotHeldToMore: the template may be older than the refusal.
func TestWhatIsMadeFromATemplateIsNotHeldToMore(t *testing.T) {
	g := NewWithT(t)
	config := &bootstrapv1.TalosConfig{Spec: withJSON(worker("v1.13"), "replace", "/machine/certSANs", "")}
	_, err := (&TalosConfig{}).ValidateCreate(t.Context(), config)
	g.Expect(err).To(MatchError(ContainSubstring("spec.configPatches[0].value")))
	config.OwnerReferences = []metav1.OwnerReference{{APIVersion: "cluster.x-k8s.io/v1beta2", Kind: "MachineSet", Name: "a"}}
	_, err = (&TalosConfig{}).ValidateCreate(t.Context(), config)
	g.Expect(err).NotTo(HaveOccurred())
}
