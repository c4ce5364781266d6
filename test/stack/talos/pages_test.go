package talos

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	backupv1 "github.com/capi-talos/capi-talos/backup/api/v1alpha1"
	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
	"github.com/capi-talos/capi-talos/test/stack/internal/debian"
	"github.com/capi-talos/capi-talos/test/stack/management"
	"github.com/capi-talos/capi-talos/test/stack/parts"
	"github.com/capi-talos/capi-talos/test/support/s3server"
)

// backUpAsThePageSays types what docs/backups.md says from the first key to the first backups, in
// a folder, and returns the first of them.
func backUpAsThePageSays(ctx context.Context, vault *vault, folder, name string) *backupv1.TalosEtcdBackup {
	GinkgoHelper()
	open := func(heading string) *section { return openSection(ctx, "backups.md", heading, folder, name) }
	page := open("Keys")
	page.types(ctx, "--output key.txt")
	recipient := strings.TrimSpace(page.types(ctx, "-y key.txt"))
	page.expectAllTyped()

	writeFile(filepath.Join(folder, "accessKeyID"), []byte(s3server.AccessKey))
	writeFile(filepath.Join(folder, "secretAccessKey"), []byte(s3server.SecretKey))
	page = open("The credentials")
	page.types(ctx, "create secret")
	page.types(ctx, "label secret")
	page.expectAllTyped()

	Expect(world.client.Create(ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: name, Name: "s3-ca"}, Data: map[string][]byte{backupv1.CAKey: vault.server.CA},
	})).To(Succeed())
	page = open("The store")
	page.applies(ctx, &backupv1.TalosBackupStore{}, "https://s3.eu-central-1.amazonaws.com", vault.server.Endpoint, "example-backups", vault.bucket,
		"region: eu-central-1", "caSecretName: s3-ca", "age1-your-public-key", recipient)
	page.types(ctx, "wait tbs/s3")
	page.expectAllTyped()

	page = open("The first backup")
	first := &backupv1.TalosEtcdBackup{}
	page.applies(ctx, first)
	page.types(ctx, "wait teb/")
	Expect(page.types(ctx, "get teb")).To(MatchRegexp(first.Name + `.* True .* Digest `))
	page.expectAllTyped()

	open("A schedule").applies(ctx, &backupv1.TalosEtcdBackupSchedule{})
	page = open("A backup now")
	page.types(ctx, "annotate tebs daily")
	page.expectAllTyped()
	awaitBackup(ctx, world.client, name, func(backup *backupv1.TalosEtcdBackup) bool {
		return backup.Labels[backupv1.ScheduleNameLabel] == "daily"
	})
	return first
}

// restoreByHand types the commands of docs/backups.md in a folder with the files of a backup
// and the private key, and expects an etcd of what comes out to have all keys. It returns the
// folder.
func restoreByHand(ctx context.Context, vault *vault, backup *backupv1.TalosEtcdBackup) (folder string) {
	GinkgoHelper()
	Expect(debian.Install(ctx, "zstd", "jq")).To(Succeed())
	built, err := parts.Ensure(ctx, parts.Print(GinkgoWriter), append(parts.EtcdPrograms(), "age")...)
	Expect(err).NotTo(HaveOccurred())
	release := strings.Join(strings.Split(backup.Status.Snapshot.EtcdVersion, ".")[:2], ".")
	folder = filepath.Join(world.dir, "by-hand")
	for _, file := range []string{"manifest.json", "data-", "secrets-"} {
		data, key := vault.file(ctx, backup.Name, file)
		writeFile(filepath.Join(folder, "backup", filepath.Base(key)), data)
	}
	writeFile(filepath.Join(folder, "key.txt"), []byte(vault.key.String()))
	writeFile(filepath.Join(folder, "restore.sh"), []byte(pageBlock("backups.md", "etcdutl")))
	tools := filepath.Join(folder, "tools")
	Expect(os.MkdirAll(tools, 0o755)).To(Succeed())
	Expect(os.Symlink(built.Path("age"), filepath.Join(tools, "age"))).To(Succeed())
	Expect(os.Symlink(built.Path(parts.EtcdProgramsPart(release), "etcdutl-"+release), filepath.Join(tools, "etcdutl"))).To(Succeed())

	script := exec.CommandContext(ctx, "bash", "restore.sh")
	script.Dir, script.Env = folder, []string{"PATH=" + tools + ":/usr/bin:/bin"}
	output, err := script.CombinedOutput()
	Expect(err).NotTo(HaveOccurred(), string(output))
	Expect(strings.Count(string(output), ": OK")).To(Equal(3), string(output))
	Expect(string(output)).To(ContainSubstring(strconv.FormatInt(*backup.Status.Verification.Revision, 10)))
	bundle, err := os.ReadFile(filepath.Join(folder, "secrets.yaml"))
	Expect(err).NotTo(HaveOccurred())
	Expect(bundle).To(MatchYAML(secretValue(ctx, backup.Namespace, backup.Namespace+"-talos", "bundle")))

	keys := countKeys(ctx, built.Path(parts.EtcdProgramsPart(release), "etcd-"+release), filepath.Join(folder, "etcd"))
	Expect(keys).To(Equal(*backup.Status.Verification.Keys))
	return folder
}

// countKeys starts an etcd on a data directory, and counts what it has.
func countKeys(ctx context.Context, program, data string) int64 {
	GinkgoHelper()
	const endpoint = "http://127.0.0.1:32379"
	etcd := exec.CommandContext(ctx, program, "--data-dir="+data, "--listen-client-urls="+endpoint, "--advertise-client-urls="+endpoint, //nolint:gosec // a part of the test bed
		"--listen-peer-urls=http://127.0.0.1:0", "--log-level=panic")
	Expect(etcd.Start()).To(Succeed())
	defer func() {
		_ = etcd.Process.Kill()
		_ = etcd.Wait()
	}()
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{endpoint}, Context: ctx, Logger: zap.NewNop()})
	Expect(err).NotTo(HaveOccurred())
	defer func() { _ = client.Close() }()
	all, err := client.Get(ctx, "\x00", clientv3.WithFromKey(), clientv3.WithCountOnly())
	Expect(err).NotTo(HaveOccurred())
	return all.Count
}

// bringBackByHand types the commands of docs/backups.md for machines that are there, in a
// folder with the snapshot, and expects the same machines to go on with what it has.
func bringBackByHand(ctx context.Context, folder, name string) {
	GinkgoHelper()
	page := openSection(ctx, "backups.md", "The machines are there", folder, name)
	before, hosts := uids(machinesOf(ctx, name)), world.nodes.Fleet.Hosts()
	var addresses []string
	for _, machine := range machinesOf(ctx, name, controlPlanes) {
		addresses = append(addresses, addressOf(machine))
	}
	page.types(ctx, `{"spec":{"paused":true}}`)
	page.types(ctx, "get secret")
	page.types(ctx, "export TALOSCONFIG")

	// A container has no partitions: the fleet does what Talos does where it has.
	world.nodes.Fleet.KeepConfigurationOnReset(true)
	DeferCleanup(func() { world.nodes.Fleet.KeepConfigurationOnReset(false) })
	for _, address := range addresses {
		page.types(ctx, " reset ", "ADDRESS", address, "--system-labels-to-wipe EPHEMERAL", "")
	}
	for _, address := range addresses {
		page.awaits(ctx, ContainSubstring("Preparing"), "service etcd", "ADDRESS", address)
	}
	world.nodes.Fleet.KeepConfigurationOnReset(false)
	page.types(ctx, "--recover-from", "ADDRESS", addresses[0])
	workload := workloadClient(ctx, name)
	Eventually(ctx, func() error { return workload.List(ctx, &corev1.NamespaceList{}) }).WithTimeout(timeout).WithPolling(time.Second).Should(Succeed())
	for _, address := range addresses {
		page.awaits(ctx, MatchRegexp(regexp.QuoteMeta(address)+`:2379 +false`), "etcd members", "ADDRESS", addresses[0])
	}
	page.types(ctx, `{"spec":{"paused":false}}`)
	page.expectAllTyped()
	awaitControlPlane(ctx, name, len(addresses))
	Expect(writtenAt(ctx, workload)).To(BeNumerically("<", raised))

	By("restarting all nodes, one after the other")
	for _, machine := range machinesOf(ctx, name) {
		was := startedAt(ctx, hosts)
		Expect(world.nodes.Fleet.Restart(ctx, hostOf(machine))).To(Succeed())
		Eventually(ctx, func() map[string]string { return startedAt(ctx, hosts) }).WithTimeout(timeout).WithPolling(time.Second).ShouldNot(Equal(was))
		Eventually(ctx, func() error {
			_, err := membersAt(ctx, name, addressOf(machine))
			return err
		}).WithTimeout(timeout).WithPolling(time.Second).Should(Succeed())
		awaitControlPlane(ctx, name, len(addresses))
	}
	writtenAt(ctx, workload)
	Expect(uids(machinesOf(ctx, name))).To(ConsistOf(before))
}

// expectOneVoterReplaced takes the etcd of one machine away for good, types what docs/backups.md
// says about that, and expects as many voters as before.
func expectOneVoterReplaced(ctx context.Context, folder, name string) {
	GinkgoHelper()
	page := openSection(ctx, "backups.md", "One voter is lost", folder, name)
	patch(ctx, name, "taloscontrolplane", name+"-control-plane", `{"spec":{"etcd":{"leaveTimeoutSeconds":10}}}`)
	machines := machinesOf(ctx, name, controlPlanes)
	Expect(world.nodes.Fleet.SpoilEtcd(ctx, hostOf(machines[0]))).To(Succeed())
	page.types(ctx, "delete machine", "NAME", machines[0].Name)
	page.expectAllTyped()
	awaitControlPlane(ctx, name, len(machines))
	Expect(uids(machinesOf(ctx, name, controlPlanes))).To(And(ContainElements(uids(machines[1:])), Not(ContainElement(string(machines[0].UID)))))
}

// beginAnewByHand types the commands of docs/backups.md for machines that are gone, in a
// folder with the snapshot and the secrets bundle, and expects the cluster of before.
func beginAnewByHand(ctx context.Context, folder, name string) {
	GinkgoHelper()
	page := openSection(ctx, "backups.md", "The machines are gone", folder, name)
	Eventually(ctx, func() error {
		return world.client.Get(ctx, ctrlclient.ObjectKey{Namespace: name, Name: name + "-talos"}, &corev1.Secret{})
	}).WithTimeout(timeout).WithPolling(time.Second).Should(MatchError(ContainSubstring("not found")))
	page.types(ctx, "create secret")
	annotated := &controlplanev1.TalosControlPlane{}
	Expect(yaml.Unmarshal([]byte(page.manifest), annotated)).To(Succeed())
	held := annotated.Annotations[controlplanev1.RestoreAnnotation]
	Expect(held).NotTo(BeEmpty(), "nothing else keeps the provider from bootstrapping")
	createFrom(ctx, management.Shape{Namespace: name, ControlPlanes: 1}, held)
	var machine *clusterv1.Machine
	Eventually(ctx, func(g Gomega) {
		machines := machinesOf(ctx, name)
		g.Expect(machines).To(HaveLen(1))
		machine = machines[0]
	}).WithTimeout(timeout).WithPolling(100 * time.Millisecond).Should(Succeed())
	Eventually(ctx, func(g Gomega) {
		g.Expect(world.client.Get(ctx, ctrlclient.ObjectKeyFromObject(machine), machine)).To(Succeed())
		g.Expect(addressOf(machine)).NotTo(BeEmpty())
		g.Expect(machine.Spec.ProviderID).NotTo(BeEmpty())
	}).WithTimeout(timeout).WithPolling(time.Second).Should(Succeed())
	address := addressOf(machine)
	endpoint, err := world.nodes.Fleet.Endpoint(ctx, name)
	Expect(err).NotTo(HaveOccurred())
	page.types(ctx, "gen config", "ENDPOINT", endpoint.Host)
	page.types(ctx, "export TALOSCONFIG")
	page.types(ctx, "config endpoint", "ADDRESS", address)
	page.awaits(ctx, ContainSubstring("Preparing"), "service etcd", "ADDRESS", address)
	page.types(ctx, "--recover-from", "ADDRESS", address)
	Eventually(ctx, func() error {
		return workloadClient(ctx, name).List(ctx, &corev1.NamespaceList{})
	}).WithTimeout(timeout).WithPolling(time.Second).Should(Succeed())
	awaitControlPlane(ctx, name, 1)

	page.types(ctx, "get kubeconfig")
	workload, nodes, gone := workloadClient(ctx, name), &corev1.NodeList{}, 0
	Expect(workload.List(ctx, nodes)).To(Succeed())
	for _, node := range nodes.Items {
		if node.Spec.ProviderID != machine.Spec.ProviderID {
			page.types(ctx, "delete node", "NODE", node.Name)
			gone++
		}
	}
	Expect(gone).To(Equal(3), "the snapshot has the Nodes of the former machines")
	page.types(ctx, " scale ")
	page.expectAllTyped()
	awaitControlPlane(ctx, name, 3)
	Expect(writtenAt(ctx, workload)).To(BeNumerically("<", raised))
	expectNodes(ctx, workload, machinesOf(ctx, name))
}

// readPage reads a page of the documentation.
func readPage(page string) string {
	GinkgoHelper()
	source, err := parts.SourceDir()
	Expect(err).NotTo(HaveOccurred())
	text, err := os.ReadFile(filepath.Join(source, "docs", page))
	Expect(err).NotTo(HaveOccurred())
	return string(text)
}

// pageBlock is the only block of a page in bash that has a word.
func pageBlock(page, word string) string {
	GinkgoHelper()
	var found []string
	for _, block := range regexp.MustCompile("(?s)```bash\n(.*?)```").FindAllStringSubmatch(readPage(page), -1) {
		if strings.Contains(block[1], word) {
			found = append(found, block[1])
		}
	}
	Expect(found).To(HaveLen(1))
	return found[0]
}

func writeFile(path string, data []byte) {
	GinkgoHelper()
	Expect(os.MkdirAll(filepath.Dir(path), 0o755)).To(Succeed())
	Expect(os.WriteFile(path, data, 0o600)).To(Succeed())
}

// section is a section of a page whose commands are typed as a reader does.
type section struct {
	folder string
	env    []string
	// commands are those that are shown, and typed tells which of them were typed.
	commands []string
	typed    []bool
	// manifest is the YAML that is shown.
	manifest string
}

// openSection reads the commands and the manifest of a section, which ends with the next
// heading. Where they say demo, a cluster of another name is meant.
func openSection(ctx context.Context, page, heading, folder, name string) *section {
	GinkgoHelper()
	Expect(os.MkdirAll(folder, 0o700)).To(Succeed())
	_, rest, found := strings.Cut(readPage(page), "# "+heading+"\n")
	Expect(found).To(BeTrue(), "%s has a section %q", page, heading)
	body, _, _ := strings.Cut(rest, "\n#")

	built, err := parts.Ensure(ctx, parts.Print(GinkgoWriter), "talosctl", "age")
	Expect(err).NotTo(HaveOccurred())
	path := strings.Join([]string{built.Dir("talosctl"), built.Dir("age"), world.stack.Built.Dir("kubectl"), filepath.Dir(world.stack.Clusterctl.Path), "/usr/bin", "/bin"}, ":")
	s := &section{
		folder: folder,
		env:    append(slices.Clone(world.stack.Clusterctl.Env), "PATH="+path, "HOME="+folder, "KUBECONFIG="+world.stack.Kubeconfig, "TALOSCONFIG=talosconfig"),
	}
	const fence, manifest = "```", "```yaml"
	open := ""
	for line := range strings.Lines(strings.ReplaceAll(body, "demo", name)) {
		command, isIndented := strings.CutPrefix(line, "    ")
		switch {
		case strings.HasPrefix(line, fence):
			if open = strings.TrimSpace(line); open == fence {
				open = ""
			}
		case open == manifest:
			s.manifest += line
		case open != "" || isIndented:
			s.commands = append(s.commands, strings.TrimSpace(command))
		}
	}
	s.typed = make([]bool, len(s.commands))
	return s
}

// types types the only command that has some words, with others in place of what it says, and
// returns what it prints.
func (s *section) types(ctx context.Context, words string, instead ...string) string {
	GinkgoHelper()
	output, err := s.run(ctx, words, instead...)
	Expect(err).NotTo(HaveOccurred(), output)
	return output
}

// awaits types a command until it prints what matches.
func (s *section) awaits(ctx context.Context, printed OmegaMatcher, words string, instead ...string) {
	GinkgoHelper()
	Eventually(ctx, func() (string, error) { return s.run(ctx, words, instead...) }).WithTimeout(longTimeout).WithPolling(time.Second).Should(printed)
}

// applies creates the object that is shown, with other words in place of what it says.
func (s *section) applies(ctx context.Context, object ctrlclient.Object, instead ...string) {
	GinkgoHelper()
	for n := 0; n < len(instead); n += 2 {
		Expect(s.manifest).To(ContainSubstring(instead[n]))
	}
	Expect(yaml.UnmarshalStrict([]byte(strings.NewReplacer(instead...).Replace(s.manifest)), object)).To(Succeed())
	Expect(world.client.Create(ctx, object)).To(Succeed())
}

func (s *section) run(ctx context.Context, words string, instead ...string) (string, error) {
	GinkgoHelper()
	hasWords := func(command string) bool { return strings.Contains(command, words) }
	i := slices.IndexFunc(s.commands, hasWords)
	Expect(i).To(BeNumerically(">=", 0), "a command with %q is among %q", words, s.commands)
	Expect(slices.ContainsFunc(s.commands[i+1:], hasWords)).To(BeFalse(), "one command has %q of %q", words, s.commands)
	for n := 0; n < len(instead); n += 2 {
		Expect(s.commands[i]).To(ContainSubstring(instead[n]))
	}
	s.typed[i] = true
	command := strings.NewReplacer(instead...).Replace(s.commands[i])
	script := exec.CommandContext(ctx, "bash", "-euo", "pipefail", "-c", command) //nolint:gosec // the commands of our own page
	script.Dir, script.Env = s.folder, s.env
	output, err := script.CombinedOutput()
	fmt.Fprintf(GinkgoWriter, "$ %s\n%s", command, output)
	return string(output), err
}

// expectAllTyped expects that no command of the section was left out.
func (s *section) expectAllTyped() {
	GinkgoHelper()
	for i, typed := range s.typed {
		Expect(typed).To(BeTrue(), s.commands[i])
	}
}
