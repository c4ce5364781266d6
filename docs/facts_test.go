package docs

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/configgen"
	"github.com/capi-talos/capi-talos/test/support/providers"
)

// TestFiguresOnPagesAreThoseOfTheCode: a page says what a file of the repository says,
// each found by one expression with one group.
func TestFiguresOnPagesAreThoseOfTheCode(t *testing.T) {
	const (
		performance, sizing, versioning, release = "docs/performance.md", "docs/sizing.md", "docs/versioning.md", "docs/release-notes.md"
		bench, benchMain                         = "test/stack/bench/bench.go", "test/stack/cmd/stack/bench.go"
		idle, rest                               = "test/suites/integration/idle/idle_test.go", "test/suites/integration/scale/rest_test.go"
		beside                                   = "test/suites/addons/beside_test.go"
	)
	for name, fact := range map[string]struct{ page, says, file, is string }{
		"the goal of the ratio":             {performance, `ratio of at most ([\d.]+),`, bench, `maxRatio +=\s+([\d.]+)`},
		"the goal of the memory":            {performance, `at most (\d+) MiB`, bench, `maxIdleMiB +=\s+(\d+)`},
		"the same on the page about sizing": {sizing, `at most (\d+) MiB`, bench, `maxIdleMiB +=\s+(\d+)`},
		"how many clusters the bench makes": {performance, `then with (\d+) of one`, benchMain, `benchClusters = \d+, (\d+)`},
		"for how long idle is watched":      {performance, `watches the managers for (\d+) minutes`, idle, `window = (\d+) \* time\.Minute`},
		"what may be read then":             {performance, `read more than (\d+) times`, idle, `maxReads, maxCalls = (\d+),`},
		"what a node may be asked then":     {performance, `gets more than (\d+) calls`, idle, `maxReads, maxCalls = \d+, (\d+)`},
		"the same reads for sizing":         {sizing, `at most (\d+) reads`, idle, `maxReads, maxCalls = (\d+),`},
		"the same calls for sizing":         {sizing, `at most (\d+) calls`, idle, `maxReads, maxCalls = \d+, (\d+)`},
		"how many clusters rest":            {performance, `leaves (\d+) clusters alone`, rest, `flag\.Int\("clusters", (\d+),`},
		"for how long they rest":            {performance, `alone for (\d+) minutes`, rest, `flag\.Duration\("rest", (\d+)\*time\.Minute`},
		"the release of CAAPH":              {performance, `the release (v[\d.]+\d), built`, "test/stack/parts/table_caaph.go", `caaphVersion = "(v[\d.]+)"`},
		"how many clusters CAAPH has":       {performance, `Each of (\d+) workload clusters`, beside, `flag\.Int\("clusters", (\d+),`},
		"for how long CAAPH rests":          {performance, `nothing is done for (\d+) minutes`, beside, `flag\.Duration\("idle", (\d+)\*time\.Minute`},
		"the CPU of a manager":              {sizing, `asks for (\d+m) of CPU`, "config/infrastructure/manager/manager.yaml", `cpu: (\d+m)`},
		"the memory of a manager":           {sizing, `and (\d+Mi) of memory`, "config/infrastructure/manager/manager.yaml", `memory: (\d+Mi)`},
		"memory of machines in Pods":        {sizing, `(takes \d+ to \d+ MiB, a worker \d+ MiB)`, "docs/container.md", `(takes \d+ to \d+ MiB, a worker \d+ MiB)`},
		"the time-out of a release":         {"docs/uninstall.md", "`releaseTimeoutSeconds` \\((\\d+) by default", "infrastructure/api/v1alpha1/talosmachine_types.go", `state Error until it answers and is wiped\. Defaults to (\d+)\.`},
		"the contract":                      {versioning, `v0\.1 follows (\w+)`, "metadata.yaml", `contract: (\w+)`},
		"the release of Cluster API":        {versioning, `which is (1\.\d+) today`, "go.mod", `\tsigs\.k8s\.io/cluster-api v(\d+\.\d+)`},
		"the memory of a part of a backup":  {sizing, `parts of (\d+) MiB in memory`, "backup/internal/store/parts.go", `partSize += (\d+) << 20`},
		"when a backup is tried no more":    {"docs/backups.md", "until `timeoutSeconds` \\((\\d+)\\) are over", "backup/api/v1alpha1/talosetcdbackup_types.go", `DefaultBackupTimeoutSeconds = int32\((\d+)\)`},
		"how often a store is checked":      {"docs/backups.md", "With `checkIntervalSeconds: (\\d+)`", "backup/api/v1alpha1/talosbackupstore_types.go", `DefaultCheckIntervalSeconds = int32\((\d+)\)`},
		"how many backups are made at once": {sizing, "With `--max-backups=(\\d+)`", "backup/setup/setup.go", `DefaultMaxBackups += (\d+)`},
		"how long etcd may take to restore": {"docs/kinds/talosetcdrestore.md", `does not come up within (\d+) minutes`, "backup/internal/restore/next.go", `recoveryTime = (\d+) \* time\.Minute`},
		"the room that a restore needs":     {"docs/kinds/talosetcdrestore.md", `twice the size of the database and (\d+) MiB`, "backup/internal/restore/database.go", `logBytes = (\d+) << 20`},
		"the size of gzipped user data":     {release, `\(about (\d+) kB gzipped`, "docs/container.md", `about (\d+) kB gzipped`},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			joined := strings.Join(strings.Fields(strings.ReplaceAll(source(g, fact.file), "\n\t// ", " ")), " ")
			g.Expect(found(fact.is, source(g, fact.file)+"\n"+joined)).To(ConsistOf(pinned(g, fact.page, fact.says)), "%s and %s", fact.page, fact.file)
		})
	}
}

// TestVersionsOnThePageOfVersions: kinds in the API versions that are installed, and
// the contracts that can be rendered.
func TestVersionsOnThePageOfVersions(t *testing.T) {
	g := NewWithT(t)
	page := source(g, "docs/versioning.md")
	kinds := map[string]string{}
	for _, file := range kindFiles(g) {
		kind := &apiextensionsv1.CustomResourceDefinition{}
		g.Expect(yaml.UnmarshalStrict([]byte(file), kind)).To(Succeed())
		g.Expect(kind.Spec.Versions).To(HaveLen(1), "the page says so")
		kinds[kind.Spec.Names.Kind] = kind.Spec.Versions[0].Name
	}
	_, rows := table(g, page, "Part", "Rule")
	shown := map[string]string{}
	for _, row := range rows {
		names, version, ok := strings.Cut(row[0], ": `v1")
		if !ok {
			continue
		}
		for name := range strings.SplitSeq(names, ", ") {
			shown[name] = "v1" + strings.TrimSuffix(version, "`")
		}
	}
	g.Expect(shown).To(Equal(kinds))
	contracts := configgen.Contracts()
	last := len(contracts) - 1
	g.Expect(page).To(ContainSubstring(strings.Join(contracts[:last], ", ") + " and " + contracts[last] + " today"))
}

// kindFiles are the contents of the generated kinds.
func kindFiles(g Gomega) []string {
	files, err := filepath.Glob("../config/*/crd/bases/*.yaml")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(files).NotTo(BeEmpty())
	var all []string
	for _, file := range files {
		all = append(all, source(g, strings.TrimPrefix(file, "../")))
	}

	return all
}

// TestPagesNameWhatIsInstalled: names that begin as those of our managers, and
// kustomizations, are of something that is there.
func TestPagesNameWhatIsInstalled(t *testing.T) {
	g := NewWithT(t)
	var installed []string
	g.Expect(fs.WalkDir(os.DirFS(".."), "config", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".yaml" {
			return err
		}
		installed = append(installed, found(`(?:name|namespace): (capt-[a-z-]+)\n`, source(g, path))...)
		return nil
	})).To(Succeed())
	lease := pinned(g, "cmd/internal/startup/startup.go", `program\.Name \+ "(-[a-z-]+)"`)
	for _, manager := range providerFolders(g) {
		installed = append(installed, pinned(g, "cmd/"+manager+"/main.go", `Name: +"([^"]+)"`)+lease)
	}
	for path, text := range allPages(g) {
		for _, name := range found(`\b(capt-[a-z-]*[a-z])\b`, text) {
			g.Expect(installed).To(ContainElement(name), path)
		}
		for _, folder := range found(`--kustomize (\S+)`, text) {
			g.Expect(filepath.Join("..", folder, "kustomization.yaml")).To(BeAnExistingFile(), path)
		}
	}
}

// providerFolders are the folders of our providers.
func providerFolders(g Gomega) []string {
	ours, err := providers.Read("..")
	g.Expect(err).NotTo(HaveOccurred())
	folders := make([]string, 0, len(ours))
	for _, provider := range ours {
		folders = append(folders, provider.Folder)
	}

	return folders
}

// TestUninstallTakesAwayWhatWasInstalled: the label that all of it has, and the roles
// that pages have for users.
func TestUninstallTakesAwayWhatWasInstalled(t *testing.T) {
	g := NewWithT(t)
	page := source(g, "docs/uninstall.md")
	var labels []string
	for _, provider := range providerFolders(g) {
		labels = append(labels, pinned(g, "config/"+provider+"/default/kustomization.yaml", `cluster\.x-k8s\.io/provider: (\S+)`))
	}
	g.Expect(page).To(ContainSubstring("--selector 'cluster.x-k8s.io/provider in (" + strings.Join(labels, ", ") + ")'"))
	var roles []string
	for _, path := range []string{"docs/install.md", "docs/addons.md", "docs/backups.md"} {
		shown := found(`(?m)^kind: ClusterRole\nmetadata:\n  name: (\S+)$`, source(g, path))
		g.Expect(shown).NotTo(BeEmpty(), path)
		roles = append(roles, shown...)
	}
	g.Expect(strings.Fields(pinned(g, "docs/uninstall.md", `delete --ignore-not-found clusterrole (.+)`))).To(ConsistOf(roles))
}

// TestRightsOnSecretsAreThoseOfTheRoles: what the page about security says of all managers
// is what their roles grant.
func TestRightsOnSecretsAreThoseOfTheRoles(t *testing.T) {
	g := NewWithT(t)
	reads := found("`([a-z]+)`", pinned(g, "docs/SECURITY.md", `(?m)^\| the managers \| (.+) on Secrets in all namespaces`))
	writes := found("`([a-z]+)`", pinned(g, "docs/SECURITY.md", `all but the add-on and the backup manager also (.+), the infrastructure manager`))
	g.Expect(reads).NotTo(BeEmpty())
	g.Expect(writes).NotTo(BeEmpty())
	for _, provider := range providerFolders(g) {
		role := &rbacv1.ClusterRole{}
		g.Expect(yaml.UnmarshalStrict([]byte(source(g, "config/"+provider+"/rbac/role.yaml")), role)).To(Succeed())
		var granted []string
		for _, rule := range role.Rules {
			for _, resource := range rule.Resources {
				if resource == "secrets" {
					granted = append(granted, rule.Verbs...)
				}
			}
		}
		g.Expect(granted).To(ContainElements(reads), provider)
		switch provider {
		case "addons":
			g.Expect(granted).NotTo(ContainElement(BeElementOf(writes)), provider)
		case "backup":
			only := found("`([a-z]+)`", pinned(g, "docs/SECURITY.md", `the backup manager only (.+), for a`))
			g.Expect(granted).To(ConsistOf(append(only, append(reads, "watch")...)), provider)
		default:
			g.Expect(granted).To(ContainElements(writes), provider)
		}
	}
}

// TestReleaseNotesNameWhatThereIs: variables, flags, metrics and annotations.
func TestReleaseNotesNameWhatThereIs(t *testing.T) {
	g := NewWithT(t)
	page := source(g, "docs/release-notes.md")
	for _, variable := range found("`([A-Z]+_[A-Z_]+)`", page) {
		g.Expect(source(g, "templates/cluster-template.yaml")).To(ContainSubstring("${" + variable + ":="))
	}
	g.Expect(found("`--([a-z-]+)[=`]", page)).To(HaveEach(BeElementOf(managerFlags(g))))
	for _, metric := range found("`(capi_talos_[a-z_]+)`", page) {
		g.Expect(source(g, "docs/metrics.md")).To(ContainSubstring("| `" + metric + "` |"))
	}
	for _, annotation := range found("`([a-z]+\\.cluster\\.x-k8s\\.io/[a-z-]+)`", page) {
		g.Expect(source(g, "docs/secrets-and-annotations.md")).To(ContainSubstring("| `" + annotation + "` |"))
	}
}
