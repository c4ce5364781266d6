package e2e

import (
	"context"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonv1 "github.com/capi-talos/capi-talos/addons/api/v1alpha1"
	"github.com/capi-talos/capi-talos/test/stack/demo"
	"github.com/capi-talos/capi-talos/test/support/charts"
)

// appChart runs a Deployment that says what the management cluster knows of its cluster.
var appChart = charts.Chart{"templates/all.yaml": `
apiVersion: apps/v1
kind: Deployment
metadata:
  name: app
  labels: {token: {{ .Values.token }}, endpoint: {{ .Values.endpoint }}, version: {{ .Values.version }}}
spec:
  selector: {matchLabels: {app: app}}
  template:
    metadata: {labels: {app: app}}
    spec: {containers: [{name: pause, image: "` + demo.Workload + `", imagePullPolicy: IfNotPresent}]}
`}

// installAddon installs a chart in a cluster by its label, rolls out a Secret, has what was
// deleted made again, and takes the label away.
func installAddon(ctx context.Context, name string) {
	GinkgoHelper()
	const addon = "app"
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: name, Name: addon}, StringData: map[string]string{"values.yaml": "token: first"}}
	step(ctx, name+": an add-on installed", func(ctx context.Context) string {
		for _, object := range []client.Object{
			secret,
			&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: name, Name: addon}, BinaryData: map[string][]byte{"chart.tgz": appChart.Pack("1.0.0")}},
			&addonv1.TalosClusterAddon{ObjectMeta: metav1.ObjectMeta{Namespace: name, Name: addon}, Spec: addonv1.TalosClusterAddonSpec{
				ClusterSelector: metav1.LabelSelector{MatchLabels: map[string]string{addon: "on"}},
				Source:          addonv1.AddonSource{ConfigMap: addonv1.ConfigMapSource{Name: addon}},
				ValuesTemplate:  "endpoint: {{ .InfraCluster.spec.controlPlaneEndpoint.host }}\nversion: {{ .ControlPlane.spec.version }}\n",
				ValuesFrom:      []addonv1.ValuesReference{{Kind: addonv1.SecretValues, Name: addon}},
				Drift:           addonv1.DriftSpec{Mode: addonv1.DriftCorrect, IntervalSeconds: ptr.To(int32(10))},
			}},
		} {
			Expect(world.client.Create(ctx, object)).To(Succeed())
		}
		kubectl(ctx, name, "label", "cluster", name, addon+"=on")
		awaitAddon(ctx, name, "first")
		return "Ready"
	})
	step(ctx, name+": the Secret of an add-on changed", func(ctx context.Context) string {
		secret.StringData = map[string]string{"values.yaml": "token: second"}
		Expect(world.client.Update(ctx, secret)).To(Succeed())
		awaitAddon(ctx, name, "second")
		return "rolled out"
	})
	step(ctx, name+": an object of an add-on deleted", func(ctx context.Context) string {
		workload, deployment := workloadClient(ctx, name), &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: addon}}
		Expect(workload.Delete(ctx, deployment)).To(Succeed())
		awaitAddon(ctx, name, "second")
		return "made again"
	})
	step(ctx, name+": the label of an add-on taken away", func(ctx context.Context) string {
		kubectl(ctx, name, "label", "cluster", name, addon+"-")
		Eventually(ctx, func() error {
			return workloadClient(ctx, name).Get(ctx, client.ObjectKey{Namespace: metav1.NamespaceDefault, Name: addon}, &appsv1.Deployment{})
		}).WithTimeout(timeout).WithPolling(interval).Should(MatchError(apierrors.IsNotFound, "not found"))
		// What a user has brought, nobody else takes away.
		kubectl(ctx, name, "delete", "talosclusteraddon/"+addon, "secret/"+addon, "configmap/"+addon, "--timeout="+timeout.String())
		return "uninstalled"
	})
}

// awaitAddon waits until the add-on is ready and its Deployment has the token.
func awaitAddon(ctx context.Context, name, token string) {
	GinkgoHelper()
	Eventually(ctx, func(g Gomega) {
		releases := &addonv1.TalosClusterAddonReleaseList{}
		g.Expect(world.client.List(ctx, releases, client.InNamespace(name))).To(Succeed())
		g.Expect(releases.Items).To(HaveLen(1))
		release := &releases.Items[0]
		g.Expect(conditions.IsTrue(release, addonv1.ReleaseReadyCondition)).To(BeTrue(), conditions.GetMessage(release, addonv1.ReleaseReadyCondition))
		deployment := &appsv1.Deployment{}
		g.Expect(workloadClient(ctx, name).Get(ctx, client.ObjectKey{Namespace: metav1.NamespaceDefault, Name: "app"}, deployment)).To(Succeed())
		g.Expect(deployment.Labels).To(And(HaveKeyWithValue("token", token), HaveKey("endpoint"), HaveKey("version")))
		g.Expect(deployment.Status.AvailableReplicas).To(BeEquivalentTo(1))
	}).WithTimeout(timeout).WithPolling(interval).Should(Succeed())
}
