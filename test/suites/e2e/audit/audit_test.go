package audit

import (
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"sigs.k8s.io/yaml"

	"github.com/capi-talos/capi-talos/test/support/providers"
)

// components has a manager with a role, one with a role that collects others, and
// a stranger whose role would be collected, too.
const components = `
apiVersion: v1
kind: ServiceAccount
metadata: {name: manager, namespace: one-system, labels: {cluster.x-k8s.io/provider: one-talos}}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: manager, namespace: two-system, labels: {cluster.x-k8s.io/provider: two-talos}}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: manager, namespace: stranger-system, labels: {cluster.x-k8s.io/provider: infrastructure-stranger}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: one, labels: {cluster.x-k8s.io/provider: one-talos}}
rules:
- {apiGroups: [""], resources: [secrets], verbs: [get, watch]}
- {apiGroups: [x.io], resources: [things/finalizers], verbs: [update]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: one}
roleRef: {kind: ClusterRole, name: one}
subjects:
- {kind: ServiceAccount, name: manager, namespace: one-system}
- {kind: ServiceAccount, name: manager, namespace: stranger-system}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: leases, namespace: one-system}
rules:
- {apiGroups: [coordination.k8s.io], resources: [leases], resourceNames: [lock], verbs: [update]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: leases, namespace: one-system}
roleRef: {kind: Role, name: leases}
subjects: [{kind: ServiceAccount, name: manager, namespace: one-system}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: collected, labels: {cluster.x-k8s.io/provider: two-talos, collect: "true"}}
rules: [{apiGroups: [infrastructure.cluster.x-k8s.io], resources: ["*"], verbs: [create]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: of-a-stranger, labels: {cluster.x-k8s.io/provider: infrastructure-stranger, collect: "true"}}
rules: [{apiGroups: ["*"], resources: ["*"], verbs: ["*"]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: collecting, labels: {cluster.x-k8s.io/provider: two-talos}}
aggregationRule: {clusterRoleSelectors: [{matchLabels: {collect: "true"}}]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: two}
roleRef: {kind: ClusterRole, name: collecting}
subjects: [{kind: ServiceAccount, name: manager, namespace: two-system}]
`

// rights are those of components.
func rights(t *testing.T) Rights {
	t.Helper()
	read, err := ReadRights([]byte(components))
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return read
}

func TestReadRights(t *testing.T) {
	t.Run("expands what is bound to our managers", func(t *testing.T) {
		g := NewWithT(t)
		read := rights(t)
		g.Expect(read.Users()).To(Equal([]string{"system:serviceaccount:one-system:manager", "system:serviceaccount:two-system:manager"}))
		g.Expect(read.Grants).To(ConsistOf(
			Grant{Manager: "one-talos", Resource: "secrets", Verb: "get"},
			Grant{Manager: "one-talos", Resource: "secrets", Verb: "watch"},
			Grant{Manager: "one-talos", Group: "x.io", Resource: "things/finalizers", Verb: "update"},
			Grant{Manager: "one-talos", Namespace: "one-system", Group: "coordination.k8s.io", Resource: "leases", Name: "lock", Verb: "update"},
			Grant{Manager: "two-talos", Group: "infrastructure.cluster.x-k8s.io", Resource: "*", Verb: "create"},
		))
	})
	t.Run("knows our providers by their labels", func(t *testing.T) {
		for label, want := range map[string]bool{
			"bootstrap-talos": true, "addon-talos-backup": true, "infrastructure-stranger": false, "infrastructure-talosian": false, "talos": false, "": false,
		} {
			NewWithT(t).Expect(isOurs(label)).To(Equal(want), label)
		}
	})
	t.Run("fails without a manager of ours", func(t *testing.T) {
		_, err := ReadRights([]byte("apiVersion: v1\nkind: Namespace\nmetadata: {name: n}\n"))
		NewWithT(t).Expect(err).To(MatchError(ContainSubstring("no service account of ours")))
	})
	t.Run("fails when a role is missing", func(t *testing.T) {
		_, err := ReadRights([]byte(strings.ReplaceAll(components, "kind: ClusterRole, name: one}", "kind: ClusterRole, name: other}")))
		NewWithT(t).Expect(err).To(MatchError(ContainSubstring("cluster role other is not in the component files")))
	})
}

func TestOurReleaseIsRead(t *testing.T) {
	g := NewWithT(t)
	var components [][]byte
	ours, err := providers.Read(filepath.Join("..", "..", "..", ".."))
	g.Expect(err).NotTo(HaveOccurred())
	for _, provider := range ours {
		files, err := filepath.Glob(filepath.Join("..", "..", "..", "..", "config", provider.Folder, "rbac", "*.yaml"))
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(files).NotTo(BeEmpty())
		for _, file := range files {
			if filepath.Base(file) != "kustomization.yaml" {
				components = append(components, labelled(t, file, provider.Label)...)
			}
		}
	}
	read, err := ReadRights(components...)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(read.Managers).To(HaveLen(len(ours)))
	g.Expect(read.Grants).To(ContainElements(
		And(HaveField("Manager", "infrastructure-talos"), HaveField("Resource", "taloshosts")),
		And(HaveField("Manager", "control-plane-talos"), HaveField("Group", "infrastructure.cluster.x-k8s.io"), HaveField("Resource", "*")),
	))
	g.Expect(Judge(read, Requests{}, Explained()).Stale).To(BeEmpty(), "each explanation is about a right that there is")
	for _, blocked := range ownersWhoseDeletionIsBlocked {
		g.Expect(read.Grants).To(ContainElement(blocked), "where OwnerReferencesPermissionEnforcement is on, the owner reference is refused without it")
	}
}

// ownersWhoseDeletionIsBlocked are the rights on the owners that our managers set with
// blockOwnerDeletion.
var ownersWhoseDeletionIsBlocked = []Grant{
	{Manager: "addon-talos", Group: "addons.cluster.x-k8s.io", Resource: "talosclusteraddons/finalizers", Verb: "update"},
	{Manager: "bootstrap-talos", Group: "bootstrap.cluster.x-k8s.io", Resource: "talosconfigs/finalizers", Verb: "update"},
	{Manager: "control-plane-talos", Group: "controlplane.cluster.x-k8s.io", Resource: "taloscontrolplanes/finalizers", Verb: "update"},
	{Manager: "control-plane-talos", Group: "cluster.x-k8s.io", Resource: "machines/finalizers", Verb: "update"},
	{Manager: "infrastructure-talos", Group: "infrastructure.cluster.x-k8s.io", Resource: "talosclusters/finalizers", Verb: "update"},
	{Manager: "infrastructure-talos", Group: "infrastructure.cluster.x-k8s.io", Resource: "talosmachines/finalizers", Verb: "update"},
	{Manager: "infrastructure-talos", Group: "infrastructure.cluster.x-k8s.io", Resource: "taloshosts/finalizers", Verb: "update"},
}

// labelled are the objects of a file with the labels that kustomize gives them.
func labelled(t *testing.T, file, provider string) [][]byte {
	t.Helper()
	g := NewWithT(t)
	text, err := os.ReadFile(file)
	g.Expect(err).NotTo(HaveOccurred())
	var objects [][]byte
	for document := range strings.SplitSeq(string(text), "\n---\n") {
		object := map[string]any{}
		g.Expect(yaml.Unmarshal([]byte(document), &object)).To(Succeed())
		metadata, ok := object["metadata"].(map[string]any)
		g.Expect(ok).To(BeTrue(), file)
		labels := map[string]any{providerLabel: provider}
		if metadata["name"] == "capt-control-plane-manager-role" {
			labels["cluster.x-k8s.io/aggregate-to-capt-control-plane-manager"] = "true"
		}
		metadata["labels"] = labels
		out, err := yaml.Marshal(object)
		g.Expect(err).NotTo(HaveOccurred())
		objects = append(objects, out)
	}
	return objects
}

// log is an audit log; the second manager has a line of its own.
const log = `
{"kind":"Event","apiVersion":"audit.k8s.io/v1","stage":"ResponseComplete","verb":"get","user":{"username":"system:serviceaccount:one-system:manager"},"objectRef":{"resource":"secrets","namespace":"a","name":"s","apiVersion":"v1"},"responseStatus":{"code":404}}
{"kind":"Event","apiVersion":"audit.k8s.io/v1","stage":"ResponseStarted","verb":"watch","user":{"username":"system:serviceaccount:one-system:manager"},"objectRef":{"resource":"secrets","apiVersion":"v1"},"responseStatus":{"code":200}}
{"kind":"Event","apiVersion":"audit.k8s.io/v1","stage":"ResponseComplete","verb":"get","user":{"username":"system:serviceaccount:one-system:manager"},"requestURI":"/api"}
{"kind":"Event","apiVersion":"audit.k8s.io/v1","stage":"ResponseComplete","verb":"delete","user":{"username":"kubernetes-admin"},"objectRef":{"resource":"secrets","namespace":"a","name":"s","apiVersion":"v1"},"responseStatus":{"code":403}}
{"kind":"Event","apiVersion":"audit.k8s.io/v1","stage":"ResponseComplete","verb":"create","user":{"username":"system:serviceaccount:two-system:manager"},"objectRef":{"resource":"talosmachines","namespace":"a","apiGroup":"infrastructure.cluster.x-k8s.io","apiVersion":"v1alpha1"},"responseStatus":{"code":201}}
`

// refusal is an event of a request that RBAC has refused.
const refusal = `{"kind":"Event","apiVersion":"audit.k8s.io/v1","stage":"ResponseComplete","verb":"patch","user":{"username":"system:serviceaccount:one-system:manager"},"objectRef":{"resource":"things","namespace":"a","name":"t","apiGroup":"x.io","subresource":"status"},"responseStatus":{"code":403,"reason":"Forbidden","message":"things is forbidden"},"annotations":{"authorization.k8s.io/decision":"forbid"}}`

// denial is an event of a request for a right that there is, which admission has
// denied.
func denial(message string) string {
	return `{"kind":"Event","apiVersion":"audit.k8s.io/v1","stage":"ResponseComplete","verb":"create","user":{"username":"system:serviceaccount:one-system:manager"},"objectRef":{"resource":"pods","namespace":"a"},"responseStatus":{"code":403,"reason":"Forbidden","message":` +
		strconv.Quote(message) + `},"annotations":{"authorization.k8s.io/decision":"allow"}}`
}

// applied is an event of a server-side apply, which was answered with a code.
func applied(code int) string {
	return `{"kind":"Event","apiVersion":"audit.k8s.io/v1","stage":"ResponseComplete","verb":"patch","user":{"username":"system:serviceaccount:two-system:manager"},"objectRef":{"resource":"talosmachines","namespace":"a","name":"m","apiGroup":"infrastructure.cluster.x-k8s.io","apiVersion":"v1alpha1"},"responseStatus":{"code":` +
		strconv.Itoa(code) + `}}`
}

func requests(t *testing.T, logs ...string) Requests {
	t.Helper()
	read, err := ReadLogs(rights(t).Managers, time.Time{}, strings.NewReader(strings.Join(logs, "\n")+"\n"))
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return read
}

func TestReadLogs(t *testing.T) {
	t.Run("counts what our managers ask for resources", func(t *testing.T) {
		g := NewWithT(t)
		read := requests(t, log, log)
		g.Expect(read.Refused).To(BeEmpty())
		g.Expect(read.Allowed).To(Equal(map[Request]int{
			{Manager: "one-talos", Namespace: "a", Resource: "secrets", Name: "s", Verb: "get"}:                                         2,
			{Manager: "one-talos", Resource: "secrets", Verb: "watch"}:                                                                  2,
			{Manager: "two-talos", Namespace: "a", Group: "infrastructure.cluster.x-k8s.io", Resource: "talosmachines", Verb: "create"}: 2,
		}))
	})
	t.Run("takes an apply that makes an object for a create, too", func(t *testing.T) {
		g := NewWithT(t)
		apply := Request{Manager: "two-talos", Namespace: "a", Group: "infrastructure.cluster.x-k8s.io", Resource: "talosmachines", Name: "m", Verb: "patch"}
		creates := apply
		creates.Verb = "create"
		g.Expect(requests(t, applied(http.StatusOK)).Allowed).To(Equal(map[Request]int{apply: 1}))
		g.Expect(requests(t, applied(http.StatusCreated), applied(http.StatusOK)).Allowed).To(Equal(map[Request]int{apply: 2, creates: 1}))
	})
	t.Run("keeps what was refused", func(t *testing.T) {
		NewWithT(t).Expect(requests(t, refusal).Refused).To(Equal(map[Request]string{
			{Manager: "one-talos", Namespace: "a", Group: "x.io", Resource: "things/status", Name: "t", Verb: "patch"}: "things is forbidden",
		}))
	})
	for behaviour, message := range map[string]string{
		"quota":                           `pods "p" is forbidden: exceeded quota: pods, requested: pods=1, used: pods=6, limited: pods=1`,
		"Pod Security":                    `pods "p" is forbidden: violates PodSecurity "baseline:latest": privileged`,
		"webhook":                         `admission webhook "w" denied the request: not this one`,
		"namespace that is being deleted": `pods "p" is forbidden: unable to create new content in namespace a because it is being terminated`,
	} {
		t.Run("does not blame a manager for a "+behaviour, func(t *testing.T) {
			g := NewWithT(t)
			read := requests(t, denial(message))
			g.Expect(read.Refused).To(BeEmpty())
			g.Expect(read.Allowed).To(HaveKeyWithValue(Request{Manager: "one-talos", Namespace: "a", Resource: "pods", Verb: "create"}, 1), "the right is there, and was used")
		})
	}
	t.Run("keeps what was denied for want of a right to the owner", func(t *testing.T) {
		NewWithT(t).Expect(requests(t, denial(`pods "p" is forbidden: cannot set blockOwnerDeletion if an ownerReference refers to a resource you can't set finalizers on: , <nil>`)).Refused).
			To(HaveLen(1))
	})
	t.Run("leaves out what came in before", func(t *testing.T) {
		g := NewWithT(t)
		moment := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
		at := func(when time.Time) string {
			return strings.Replace(refusal, `"verb"`, `"requestReceivedTimestamp":"`+when.Format(metav1.RFC3339Micro)+`","verb"`, 1)
		}
		for when, want := range map[time.Time]int{moment.Add(-time.Second): 0, moment: 1, moment.Add(time.Second): 1} {
			read, err := ReadLogs(rights(t).Managers, moment, strings.NewReader(at(when)+"\n"))
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(read.Refused).To(HaveLen(want))
		}
	})
	t.Run("leaves out a last line that is still being written", func(t *testing.T) {
		g := NewWithT(t)
		read, err := ReadLogs(rights(t).Managers, time.Time{}, strings.NewReader(refusal+"\n"+refusal[:50]))
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(read.Refused).To(HaveLen(1))
	})
	t.Run("fails on what is no event", func(t *testing.T) {
		_, err := ReadLogs(nil, time.Time{}, strings.NewReader("{\n"))
		NewWithT(t).Expect(err).To(MatchError(ContainSubstring("reading an event")))
	})
}

func TestGrantsCoverWhatRBACSaysTheyDo(t *testing.T) {
	request := Request{Manager: "m", Namespace: "a", Group: "x.io", Resource: "things/status", Name: "t", Verb: "patch"}
	grant := Grant{Manager: "m", Group: "x.io", Resource: "things/status", Verb: "patch"}
	for behaviour, test := range map[string]struct {
		change func(*Grant)
		want   bool
	}{
		"the very resource":             {func(*Grant) {}, true},
		"every verb":                    {func(g *Grant) { g.Verb = "*" }, true},
		"every resource":                {func(g *Grant) { g.Resource = "*" }, true},
		"a subresource of every one":    {func(g *Grant) { g.Resource = "*/status" }, true},
		"the namespace":                 {func(g *Grant) { g.Namespace = "a" }, true},
		"the object":                    {func(g *Grant) { g.Name = "t" }, true},
		"not the resource above":        {func(g *Grant) { g.Resource = "things" }, false},
		"not another subresource":       {func(g *Grant) { g.Resource = "*/scale" }, false},
		"not another verb":              {func(g *Grant) { g.Verb = "update" }, false},
		"not another namespace":         {func(g *Grant) { g.Namespace = "b" }, false},
		"not another object":            {func(g *Grant) { g.Name = "u" }, false},
		"not another group":             {func(g *Grant) { g.Group = "" }, false},
		"not what another manager asks": {func(g *Grant) { g.Manager = "n" }, false},
	} {
		t.Run(behaviour, func(t *testing.T) {
			changed := grant
			test.change(&changed)
			NewWithT(t).Expect(changed.Uses(request)).To(Equal(test.want))
		})
	}
}

func TestJudge(t *testing.T) {
	lease := `{"stage":"ResponseComplete","verb":"update","user":{"username":"system:serviceaccount:one-system:manager"},"objectRef":{"resource":"leases","namespace":"one-system","name":"lock","apiGroup":"coordination.k8s.io"},"responseStatus":{"code":200}}`
	finalizers := Explanation{Manager: "*", Group: "*", Resource: "*/finalizers", Verb: "update", Reason: "admission asks for it"}

	t.Run("is content when every right is used or explained", func(t *testing.T) {
		g := NewWithT(t)
		verdict := Judge(rights(t), requests(t, log, lease), []Explanation{finalizers})
		g.Expect(verdict.Refusals()).To(Succeed())
		g.Expect(verdict.Needless()).To(Succeed())
		var table strings.Builder
		g.Expect(verdict.Table(&table)).To(Succeed())
		g.Expect(table.String()).To(Equal(`Rights of the managers: 5 granted, 4 used, 1 explained, 0 neither; 0 requests refused.

| manager | namespace | resource | verb | used | why it need not be used |
|---|---|---|---|---|---|
| one-talos | all | secrets | get | 1 |  |
| one-talos | all | secrets | watch | 1 |  |
| one-talos | all | things/finalizers.x.io | update | 0 | admission asks for it |
| one-talos | one-system | leases.coordination.k8s.io | update | 1 |  |
| two-talos | all | *.infrastructure.cluster.x-k8s.io | create | 1 |  |
`))
	})
	t.Run("names a right that is neither", func(t *testing.T) {
		g := NewWithT(t)
		verdict := Judge(rights(t), requests(t, log), []Explanation{finalizers})
		g.Expect(verdict.Needless()).To(MatchError("one-talos may update leases.coordination.k8s.io, which was neither used nor explained"))
		var table strings.Builder
		g.Expect(verdict.Table(&table)).To(Succeed())
		g.Expect(table.String()).To(And(ContainSubstring("1 neither;"), ContainSubstring("| update | 0 | **neither used nor explained** |")))
	})
	t.Run("names a right to create beside an apply that has made nothing", func(t *testing.T) {
		g := NewWithT(t)
		of := func(code int) []Row { return Judge(rights(t), requests(t, applied(code)), Explained()).Rows }
		creates := And(HaveField("Manager", "two-talos"), HaveField("Verb", "create"))
		g.Expect(of(http.StatusOK)).To(ContainElement(And(creates, HaveField("Used", 0), HaveField("Explanation", ""))))
		g.Expect(of(http.StatusCreated)).To(ContainElement(And(creates, HaveField("Used", 1))))
	})
	t.Run("names what was refused", func(t *testing.T) {
		NewWithT(t).Expect(Judge(rights(t), requests(t, refusal), nil).Refusals()).
			To(MatchError(`one-talos was refused patch on things/status.x.io in "a": things is forbidden`))
	})
	t.Run("wants no explanation for what nobody may", func(t *testing.T) {
		stale := Explanation{Manager: "one-talos", Group: "*", Resource: "pods", Verb: "get", Reason: "of old"}
		NewWithT(t).Expect(Judge(rights(t), requests(t, log, lease), []Explanation{finalizers, stale}).Needless()).
			To(MatchError("there is no right to get pods.* of one-talos, which is explained: of old"))
	})
	t.Run("takes an explanation beside another verb only where that was used", func(t *testing.T) {
		g := NewWithT(t)
		beside := Explanation{Manager: "*", Group: "*", Resource: "*", Verb: "get", Beside: "watch", Reason: "read from the cache"}
		watched := strings.Split(strings.TrimSpace(log), "\n")[1]
		g.Expect(Judge(rights(t), requests(t, watched, lease), []Explanation{finalizers, beside}).Rows).
			To(ContainElement(And(HaveField("Verb", "get"), HaveField("Used", 0), HaveField("Explanation", "read from the cache"))))
		g.Expect(Judge(rights(t), requests(t, lease), []Explanation{finalizers, beside}).Rows).
			To(ContainElement(And(HaveField("Verb", "get"), HaveField("Explanation", ""))))
	})
}

func TestThePolicyNotesOurManagersAlone(t *testing.T) {
	g := NewWithT(t)
	policy := &auditv1.Policy{}
	g.Expect(yaml.UnmarshalStrict([]byte(Policy([]string{"system:serviceaccount:a:b"})), policy)).To(Succeed())
	g.Expect(policy.OmitStages).To(Equal([]auditv1.Stage{auditv1.StageRequestReceived}))
	g.Expect(policy.Rules).To(HaveExactElements(
		And(HaveField("Level", auditv1.LevelMetadata), HaveField("Users", []string{"system:serviceaccount:a:b"})),
		And(HaveField("Level", auditv1.LevelNone), HaveField("Users", BeEmpty())),
	))
}

func TestEnable(t *testing.T) {
	const manifest = `apiVersion: v1
kind: Pod
metadata: {name: kube-apiserver, namespace: kube-system}
spec:
  hostNetwork: true
  containers:
  - name: kube-apiserver
    command: [kube-apiserver, --secure-port=6443]
    volumeMounts: [{name: certs, mountPath: /etc/kubernetes/pki, readOnly: true}]
  volumes: [{name: certs, hostPath: {path: /etc/kubernetes/pki}}]
`
	t.Run("adds the log to the API server", func(t *testing.T) {
		g := NewWithT(t)
		changed, err := Enable([]byte(manifest))
		g.Expect(err).NotTo(HaveOccurred())
		pod := &corev1.Pod{}
		g.Expect(yaml.UnmarshalStrict(changed, pod)).To(Succeed())
		g.Expect(pod.Spec.HostNetwork).To(BeTrue())
		g.Expect(pod.Spec.Containers[0].Command).To(Equal([]string{
			"kube-apiserver", "--secure-port=6443", "--audit-policy-file=" + PolicyFile, "--audit-log-path=" + LogFolder + "/audit.log", "--audit-log-maxsize=" + maxLog,
		}))
		g.Expect(pod.Spec.Containers[0].VolumeMounts).To(HaveExactElements(
			HaveField("Name", "certs"),
			And(HaveField("MountPath", PolicyFile), HaveField("ReadOnly", true)),
			And(HaveField("MountPath", LogFolder), HaveField("ReadOnly", false)),
		))
		g.Expect(pod.Spec.Volumes).To(HaveLen(3))
	})
	t.Run("refuses another Pod", func(t *testing.T) {
		_, err := Enable([]byte(strings.ReplaceAll(manifest, "kube-apiserver", "etcd")))
		NewWithT(t).Expect(err).To(MatchError(ContainSubstring(`Pod "etcd" is none`)))
	})
}
