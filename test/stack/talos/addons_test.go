package talos

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/cluster-api/util/conditions"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	addonv1 "github.com/capi-talos/capi-talos/addons/api/v1alpha1"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/test/sim/fleet/dockerfleet"
	"github.com/capi-talos/capi-talos/test/stack/demo"
	"github.com/capi-talos/capi-talos/test/stack/management"
	"github.com/capi-talos/capi-talos/test/support/charts"
)

const (
	// networkImage is that of cmd/podnetwork.
	networkImage = "ghcr.io/capi-talos/podnetwork:v1"
	// driftSeconds is how often objects of releases are compared.
	driftSeconds = 10
)

// networkChart brings the network of Pods. The address of the API server is a value,
// because Services need the network: it is KubePrism's on each node.
var networkChart = charts.Chart{"templates/all.yaml": `
apiVersion: v1
kind: ServiceAccount
metadata: {name: podnetwork}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: podnetwork}
rules: [{apiGroups: [""], resources: [nodes], verbs: [get]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: podnetwork}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: podnetwork}
subjects: [{kind: ServiceAccount, name: podnetwork, namespace: {{ .Release.Namespace }}}]
---
apiVersion: apps/v1
kind: DaemonSet
metadata:
  name: podnetwork
  labels: {note: {{ .Values.note | quote }}}
spec:
  selector: {matchLabels: {app: podnetwork}}
  template:
    metadata: {labels: {app: podnetwork}}
    spec:
      serviceAccountName: podnetwork
      hostNetwork: true
      tolerations: [{operator: Exists}]
      containers:
      - name: podnetwork
        image: ` + networkImage + `
        env:
        - {name: API_SERVER, value: {{ required "apiServer" .Values.apiServer }}}
        - {name: NODE_NAME, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}
        securityContext: {runAsUser: 0}
        volumeMounts: [{name: networks, mountPath: /etc/cni/net.d}]
      volumes: [{name: networks, hostPath: {path: /etc/cni/net.d}}]
`}

// appChart runs Pods that need the network.
var appChart = charts.Chart{"templates/all.yaml": `
apiVersion: v1
kind: ConfigMap
metadata: {name: app}
data: {message: {{ .Values.message | quote }}, token: {{ .Values.token | quote }}, chart: {{ .Chart.Version | quote }}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: app}
spec:
  selector: {matchLabels: {app: app}}
  template:
    metadata: {labels: {app: app}}
    spec: {containers: [{name: pause, image: {{ .Values.image }}}]}
`}

// Add-ons on a cluster of real machines, which has no network of Pods but that of an
// add-on.
var _ = Describe("Add-ons", func() {
	It("bring the network before nodes are ready, and what depends on it after; are upgraded, corrected, rolled back and uninstalled", Label("addons"), func(ctx SpecContext) {
		const name = "addons"
		offerProgram(ctx, "podnetwork", networkImage)
		hosts, err := world.nodes.Fleet.AddWired(ctx, 2, dockerfleet.Wiring{NoPods: true})
		Expect(err).NotTo(HaveOccurred())
		makeKnown(ctx, name, hosts)
		a := addons{namespace: name}
		a.offer(ctx, "network", networkChart.Pack("1.0.0"))
		a.offer(ctx, "app", appChart.Pack("1.0.0"))
		a.secret(ctx, "network-values", "apiServer: localhost:7445")
		a.secret(ctx, "app-values", "token: first")
		a.create(ctx, "network", func(spec *addonv1.TalosClusterAddonSpec) {
			spec.Phase, spec.Release.Namespace = addonv1.PhaseNetwork, metav1.NamespaceSystem
			spec.ValuesFrom = []addonv1.ValuesReference{{Kind: addonv1.SecretValues, Name: "network-values"}}
			spec.Values = values("note", "first")
		})
		a.create(ctx, "app", func(spec *addonv1.TalosClusterAddonSpec) {
			spec.DependsOn = []addonv1.AddonReference{{Name: "network"}}
			spec.ValuesFrom = []addonv1.ValuesReference{{Kind: addonv1.SecretValues, Name: "app-values"}}
			spec.Values = values("message", "first", "image", demo.Workload)
			spec.Drift = addonv1.DriftSpec{Mode: addonv1.DriftCorrect, IntervalSeconds: ptr.To(int32(driftSeconds))}
			spec.Failure = addonv1.FailureSpec{OnFailure: addonv1.FailureRollback, Retries: ptr.To(int32(0))}
			spec.Release.TimeoutSeconds = ptr.To(int32(60))
		})
		createCluster(ctx, management.Shape{Namespace: name, ControlPlanes: 1, Workers: 1}, nil)
		kubectl(ctx, name, "label", "cluster", name, "network=on", "app=on")

		By("installing both")
		network, app := a.await(ctx, "network", 1), a.await(ctx, "app", 1)
		awaitControlPlane(ctx, name, 1)
		awaitWorkers(ctx, name, 1)
		workload := workloadClient(ctx, name)
		expectInstalledBeforeReady(ctx, workload, network)
		Expect(app.Status.Deployed.DeployedAt.Time).NotTo(BeTemporally("<", conditions.Get(network, addonv1.ReleaseReadyCondition).LastTransitionTime.Time),
			"an add-on waits for what it depends on")
		expectApp(ctx, workload, "first", "first", "1.0.0")

		By("upgrading both")
		patch(ctx, name, "talosclusteraddon", "network", `{"spec":{"values":{"note":"second"}}}`)
		patch(ctx, name, "talosclusteraddon", "app", `{"spec":{"values":{"message":"second"}}}`)
		a.await(ctx, "network", 2)
		a.await(ctx, "app", 2)
		expectApp(ctx, workload, "second", "first", "1.0.0")
		daemons := &appsv1.DaemonSet{}
		Expect(workload.Get(ctx, ctrlclient.ObjectKey{Namespace: metav1.NamespaceSystem, Name: "podnetwork"}, daemons)).To(Succeed())
		Expect(daemons.Labels).To(HaveKeyWithValue("note", "second"))

		By("changing the Secret")
		a.secret(ctx, "app-values", "token: second")
		a.await(ctx, "app", 3)
		expectApp(ctx, workload, "second", "second", "1.0.0")

		By("correcting what was deleted and what was edited")
		before := appObjects(ctx, workload)
		Expect(workload.Delete(ctx, before.deployment)).To(Succeed())
		edited := before.config.DeepCopy()
		edited.Data["message"] = "somebody else's"
		Expect(workload.Update(ctx, edited)).To(Succeed())
		Eventually(ctx, func(g Gomega) {
			found := &appsv1.Deployment{}
			g.Expect(workload.Get(ctx, ctrlclient.ObjectKeyFromObject(before.deployment), found)).To(Succeed())
			g.Expect(found.UID).NotTo(Equal(before.deployment.UID))
			config := &corev1.ConfigMap{}
			g.Expect(workload.Get(ctx, ctrlclient.ObjectKeyFromObject(before.config), config)).To(Succeed())
			g.Expect(config.Data).To(HaveKeyWithValue("message", "second"))
		}).WithTimeout(timeout).WithPolling(time.Second).Should(Succeed())
		a.await(ctx, "app", 3)

		By("rolling a broken version back")
		patch(ctx, name, "talosclusteraddon", "app", `{"spec":{"values":{"message":"third","image":"registry.k8s.io/there-is-none:v1"}}}`)
		Eventually(ctx, func(g Gomega) {
			ready := conditions.Get(a.release(ctx, g, "app"), addonv1.ReleaseReadyCondition)
			g.Expect(ready).To(HaveValue(And(HaveField("Status", metav1.ConditionFalse), HaveField("Reason", addonv1.StalledReason))))
		}).WithTimeout(timeout).WithPolling(time.Second).Should(Succeed())
		expectApp(ctx, workload, "second", "second", "1.0.0")
		patch(ctx, name, "talosclusteraddon", "app", `{"spec":{"values":{"message":"fourth","image":"`+demo.Workload+`"}}}`)
		Eventually(ctx, func(g Gomega) {
			g.Expect(conditions.IsTrue(a.release(ctx, g, "app"), addonv1.ReleaseReadyCondition)).To(BeTrue())
		}).WithTimeout(timeout).WithPolling(time.Second).Should(Succeed())
		expectApp(ctx, workload, "fourth", "second", "1.0.0")

		By("taking the label away")
		kubectl(ctx, name, "label", "cluster", name, "app-")
		Eventually(ctx, func() error {
			return workload.Get(ctx, ctrlclient.ObjectKeyFromObject(before.config), &corev1.ConfigMap{})
		}).WithTimeout(timeout).WithPolling(time.Second).Should(MatchError(apierrors.IsNotFound, "not found"))
		Expect(helmRecords(ctx, workload)).To(HaveKey(ContainSubstring(".network.")))
		Expect(helmRecords(ctx, workload)).NotTo(HaveKey(ContainSubstring(".app.")))

		By("giving the machines back")
		deleteCluster(ctx, name)
		awaitState(ctx, name, infrav1.HostAvailable)
	}, SpecTimeout(2*longTimeout))
})

// offerProgram builds a program below cmd, and puts its image where the nodes pull from.
func offerProgram(ctx context.Context, name, image string) {
	GinkgoHelper()
	binary := filepath.Join(world.dir, name)
	build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-o", binary, "../cmd/"+name) //nolint:gosec // our own program
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	output, err := build.CombinedOutput()
	Expect(err).NotTo(HaveOccurred(), string(output))
	Expect(world.nodes.OfferProgram(ctx, binary, image)).To(Succeed())
}

// addons are those of a namespace, each for the clusters with a label of its name.
type addons struct{ namespace string }

// offer puts a chart into a ConfigMap.
func (a addons) offer(ctx context.Context, name string, chart []byte) {
	GinkgoHelper()
	Expect(world.client.Create(ctx, &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: a.namespace, Name: name, Labels: moved}, BinaryData: map[string][]byte{"chart.tgz": chart},
	})).To(Succeed())
}

// moved has clusterctl move an object.
var moved = map[string]string{"clusterctl.cluster.x-k8s.io/move": ""}

// secret writes values of a chart.
func (a addons) secret(ctx context.Context, name, content string) {
	GinkgoHelper()
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: a.namespace, Name: name, Labels: moved}, StringData: map[string]string{"values.yaml": content}}
	if err := world.client.Create(ctx, secret); !apierrors.IsAlreadyExists(err) {
		Expect(err).NotTo(HaveOccurred())
		return
	}
	Expect(world.client.Update(ctx, secret)).To(Succeed())
}

func (a addons) create(ctx context.Context, name string, change func(*addonv1.TalosClusterAddonSpec)) {
	GinkgoHelper()
	addon := &addonv1.TalosClusterAddon{ObjectMeta: metav1.ObjectMeta{Namespace: a.namespace, Name: name}}
	addon.Spec.ClusterSelector.MatchLabels = map[string]string{name: "on"}
	addon.Spec.Source.ConfigMap.Name = name
	change(&addon.Spec)
	Expect(world.client.Create(ctx, addon)).To(Succeed())
}

// release is that of an add-on in the only cluster of the namespace.
func (a addons) release(ctx context.Context, g Gomega, name string) *addonv1.TalosClusterAddonRelease {
	list := &addonv1.TalosClusterAddonReleaseList{}
	g.Expect(world.client.List(ctx, list, ctrlclient.InNamespace(a.namespace))).To(Succeed())
	for i := range list.Items {
		if list.Items[i].Spec.AddonName == name {
			return &list.Items[i]
		}
	}
	g.Expect(list.Items).To(ContainElement(HaveField("Spec.AddonName", name)))
	return nil
}

// await waits until a revision of a release is ready.
func (a addons) await(ctx context.Context, name string, revision int32) *addonv1.TalosClusterAddonRelease {
	GinkgoHelper()
	var found *addonv1.TalosClusterAddonRelease
	Eventually(ctx, func(g Gomega) {
		found = a.release(ctx, g, name)
		g.Expect(found.Status.Deployed.Revision).To(Equal(revision))
		g.Expect(conditions.IsTrue(found, addonv1.ReleaseReadyCondition)).To(BeTrue(), conditions.GetMessage(found, addonv1.ReleaseReadyCondition))
	}).WithTimeout(longTimeout).WithPolling(time.Second).Should(Succeed())
	return found
}

// values are pairs of keys and values.
func values(pairs ...string) *apiextensionsv1.JSON {
	all := map[string]string{}
	for i := 0; i < len(pairs); i += 2 {
		all[pairs[i]] = pairs[i+1]
	}
	raw, err := json.Marshal(all)
	Expect(err).NotTo(HaveOccurred())
	return &apiextensionsv1.JSON{Raw: raw}
}

// expectInstalledBeforeReady: no node was ready when the release was installed.
func expectInstalledBeforeReady(ctx context.Context, workload ctrlclient.Client, release *addonv1.TalosClusterAddonRelease) {
	GinkgoHelper()
	nodes := &corev1.NodeList{}
	Expect(workload.List(ctx, nodes)).To(Succeed())
	Expect(nodes.Items).NotTo(BeEmpty())
	for _, node := range nodes.Items {
		for _, condition := range node.Status.Conditions {
			if condition.Type == corev1.NodeReady {
				fmt.Fprintf(GinkgoWriter, "node %s ready %.0f s after the network was installed\n", node.Name, condition.LastTransitionTime.Sub(release.Status.Deployed.DeployedAt.Time).Seconds())
				Expect(condition.LastTransitionTime.Time).NotTo(BeTemporally("<", release.Status.Deployed.DeployedAt.Time), node.Name)
			}
		}
	}
}

// appOf are the objects of the app.
type appOf struct {
	config     *corev1.ConfigMap
	deployment *appsv1.Deployment
}

func appObjects(ctx context.Context, workload ctrlclient.Client) appOf {
	GinkgoHelper()
	found, key := appOf{&corev1.ConfigMap{}, &appsv1.Deployment{}}, ctrlclient.ObjectKey{Namespace: metav1.NamespaceDefault, Name: "app"}
	Expect(workload.Get(ctx, key, found.config)).To(Succeed())
	Expect(workload.Get(ctx, key, found.deployment)).To(Succeed())
	return found
}

// expectApp looks at what runs, and with which values.
func expectApp(ctx context.Context, workload ctrlclient.Client, message, token, chart string) {
	GinkgoHelper()
	found := appObjects(ctx, workload)
	Expect(found.config.Data).To(Equal(map[string]string{"message": message, "token": token, "chart": chart}))
	Expect(found.deployment.Status.AvailableReplicas).To(BeEquivalentTo(1))
	Expect(found.deployment.Spec.Template.Spec.Containers[0].Image).To(Equal(demo.Workload))
}

// helmRecords are Helm's own, with their versions.
func helmRecords(ctx context.Context, workload ctrlclient.Client) map[string]string {
	GinkgoHelper()
	list, found := &corev1.SecretList{}, map[string]string{}
	Expect(workload.List(ctx, list, ctrlclient.MatchingLabels{"owner": "helm"})).To(Succeed())
	for _, secret := range list.Items {
		found[secret.Namespace+"/"+secret.Name] = secret.ResourceVersion
	}
	return found
}
