package demo

import (
	"context"
	"errors"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	addonv1 "github.com/capi-talos/capi-talos/addons/api/v1alpha1"
	"github.com/capi-talos/capi-talos/test/support/charts"
)

// hello is the add-on, its ConfigMap, its release and the label of its clusters.
const hello = "hello"

// helloVersion is the label of its Deployment with the version of the chart.
const helloVersion = "version"

// helloChart runs a Deployment of what all nodes have.
var helloChart = charts.Chart{"templates/deployment.yaml": `
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ .Release.Name }}
  labels: {` + helloVersion + `: {{ .Chart.Version }}}
spec:
  selector: {matchLabels: {app: {{ .Release.Name }}}}
  template:
    metadata: {labels: {app: {{ .Release.Name }}}}
    spec: {containers: [{name: pause, image: "` + Workload + `", imagePullPolicy: IfNotPresent}]}
`}

// addonSteps install a chart in the cluster by a label, upgrade it, and take the label
// away.
func (s *Scenario) addonSteps() []step {
	const installed, upgraded = "1.0.0", "2.0.0"

	return []step{
		{"add-on", "a chart to be installed by the label of the Cluster", s.whereWorkloadsRun(func(ctx context.Context, workload client.Client) (string, error) {
			if err := s.offerAddon(ctx, installed); err != nil {
				return "", err
			}
			if err := s.label(ctx, hello+"=enabled"); err != nil {
				return "", err
			}
			return "version " + installed + " Ready", s.awaitAddon(ctx, workload, installed)
		})},
		{"add-on upgrade", "the next version of the chart", s.whereWorkloadsRun(func(ctx context.Context, workload client.Client) (string, error) {
			if err := s.offerAddon(ctx, upgraded); err != nil {
				return "", err
			}
			return "version " + upgraded + " Ready", s.awaitAddon(ctx, workload, upgraded)
		})},
		{"no add-on", "the chart to be gone with the label", s.whereWorkloadsRun(func(ctx context.Context, workload client.Client) (string, error) {
			if err := s.label(ctx, hello+"-"); err != nil {
				return "", err
			}
			return "uninstalled", s.awaitNoAddon(ctx, workload)
		})},
	}
}

func (s *Scenario) whereWorkloadsRun(do func(context.Context, client.Client) (string, error)) func(context.Context) (string, error) {
	return func(ctx context.Context) (string, error) {
		if !s.Fleet.RunsWorkloads() {
			return "not applicable", nil
		}
		workload, err := s.workloadClient(ctx)
		if err != nil {
			return "", err
		}
		return do(ctx, workload)
	}
}

// offerAddon puts a version of the chart into a ConfigMap, and asks for it in the
// Clusters with the label.
func (s *Scenario) offerAddon(ctx context.Context, version string) error {
	meta := metav1.ObjectMeta{Namespace: s.Cluster, Name: hello}
	chart := &corev1.ConfigMap{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"}, ObjectMeta: meta,
		BinaryData: map[string][]byte{"chart.tgz": helloChart.Pack(version)},
	}
	addon := &addonv1.TalosClusterAddon{
		TypeMeta: metav1.TypeMeta{APIVersion: addonv1.GroupVersion.String(), Kind: "TalosClusterAddon"}, ObjectMeta: meta,
		Spec: addonv1.TalosClusterAddonSpec{
			ClusterSelector: metav1.LabelSelector{MatchLabels: map[string]string{hello: "enabled"}},
			Source:          addonv1.AddonSource{ConfigMap: addonv1.ConfigMapSource{Name: hello}},
			Release:         addonv1.ReleaseSpec{Namespace: hello},
		},
	}
	for _, object := range []any{chart, addon} {
		manifest, err := yaml.Marshal(object)
		if err != nil {
			return fmt.Errorf("encoding the add-on: %w", err)
		}
		if err := s.apply(ctx, manifest); err != nil {
			return err
		}
	}
	return nil
}

// label gives the Cluster a label, or takes it away: name=value, name-.
func (s *Scenario) label(ctx context.Context, label string) error {
	_, err := s.Management.kubectl(ctx, "--namespace", s.Cluster, "label", "cluster", s.Cluster, label)
	return err
}

// awaitAddon waits until the release is ready and its Deployment runs.
func (s *Scenario) awaitAddon(ctx context.Context, workload client.Client, version string) error {
	return s.poll(ctx, func(ctx context.Context) error {
		releases, err := s.releases(ctx)
		if err != nil {
			return err
		}
		if len(releases) != 1 {
			return fmt.Errorf("there are %d TalosClusterAddonReleases", len(releases))
		}
		if release := &releases[0]; !conditions.IsTrue(release, addonv1.ReleaseReadyCondition) || release.Status.Deployed.Version != version {
			return fmt.Errorf("TalosClusterAddonRelease %s: version %q; %s", release.Name, release.Status.Deployed.Version, message(release, addonv1.ReleaseReadyCondition))
		}
		deployment := &appsv1.Deployment{}
		if err := workload.Get(ctx, client.ObjectKey{Namespace: hello, Name: hello}, deployment); err != nil {
			return err
		}
		if found := deployment.Labels[helloVersion]; found != version || deployment.Status.AvailableReplicas != 1 {
			return fmt.Errorf("the Deployment is of version %q, with %d available replicas", found, deployment.Status.AvailableReplicas)
		}
		return nil
	})
}

// awaitNoAddon waits until the release and its Deployment are gone.
func (s *Scenario) awaitNoAddon(ctx context.Context, workload client.Client) error {
	return s.poll(ctx, func(ctx context.Context) error {
		releases, err := s.releases(ctx)
		if err != nil {
			return err
		}
		if len(releases) != 0 {
			return fmt.Errorf("TalosClusterAddonRelease %s is still there; %s", releases[0].Name, message(&releases[0], addonv1.ReleaseDeletingCondition))
		}
		switch err := workload.Get(ctx, client.ObjectKey{Namespace: hello, Name: hello}, &appsv1.Deployment{}); {
		case apierrors.IsNotFound(err):
			return nil
		case err != nil:
			return err
		default:
			return errors.New("the Deployment is still there")
		}
	})
}

func (s *Scenario) releases(ctx context.Context) ([]addonv1.TalosClusterAddonRelease, error) {
	list := &addonv1.TalosClusterAddonReleaseList{}
	err := s.client.List(ctx, list, client.InNamespace(s.Cluster))
	return list.Items, err
}
