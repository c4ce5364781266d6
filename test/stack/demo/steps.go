package demo

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/test/sim/fleet"
	"github.com/capi-talos/capi-talos/test/stack/management"
)

// pollInterval is how often the state of the world is asked for.
const pollInterval = 250 * time.Millisecond

// tellInterval is how often people are told what is missing.
const tellInterval = 10 * time.Second

// fieldOwner is whom server-side apply writes as.
const fieldOwner = client.FieldOwner("demo")

func (s *Scenario) steps() []step {
	var steps []step
	if !s.InPods {
		steps = append(steps, step{"hosts", fmt.Sprintf("%d machines in maintenance mode to be Available", s.Hosts), s.addHosts})
	}
	steps = append(steps,
		step{"create cluster", "the Cluster to be Available with " + plural(s.ControlPlanes[0], "control plane machine") + " and " + plural(s.Workers[0], "worker"), s.createCluster},
		step{"nodes", "the Nodes to be Ready with our provider IDs", s.awaitNodes},
	)
	most := slices.Index(s.ControlPlanes, slices.Max(s.ControlPlanes)) + 1
	for _, count := range s.ControlPlanes[1:most] {
		steps = append(steps, s.controlPlaneStep(count))
	}
	for _, count := range s.Workers[1:] {
		steps = append(steps, step{fmt.Sprintf("%d workers", count), plural(count, "Ready worker"), func(ctx context.Context) (string, error) {
			s.workers = count
			return s.scale(ctx, "machinedeployment", s.Cluster+"-workers", count)
		}})
	}
	steps = append(steps, step{"workload", "a Deployment to run in the cluster", s.runWorkload})
	steps = append(steps, s.addonSteps()...)
	steps = append(steps, s.backupSteps()...)
	for _, count := range s.ControlPlanes[most:] {
		steps = append(steps, s.controlPlaneStep(count))
	}
	if next := s.Fleet.NextKubernetesVersion(); next != "" {
		steps = append(steps, step{"rollout", "the control plane to run " + next, func(ctx context.Context) (string, error) { return s.rollOut(ctx, next) }})
	}
	if s.Keep {
		return steps
	}
	steps = append(steps, step{"delete cluster", "the Cluster and its Machines to be gone", s.deleteCluster})
	if s.InPods {
		return append(steps, step{"nothing left", "Pods, Services, Secrets, volume claims and budgets to be gone", s.awaitNothingLeft})
	}
	return append(steps, step{"wiped hosts", "all hosts to be Available again, proven wiped", s.awaitWiped})
}

func (s *Scenario) controlPlaneStep(count int) step {
	what := plural(count, "control plane")
	return step{what, plural(count, "control plane machine") + ", each a healthy etcd member", func(ctx context.Context) (string, error) {
		grows := count > s.controlPlanes
		s.controlPlanes = count
		outcome, unready, err := s.scaleControlPlane(ctx, count)
		if grows {
			s.Unready = max(s.Unready, unready)
		}
		return outcome, err
	}}
}

// rollOut brings the control plane to another Kubernetes version: each of its
// Machines is replaced.
func (s *Scenario) rollOut(ctx context.Context, version string) (string, error) {
	if err := s.poll(ctx, func(ctx context.Context) error {
		_, err := s.Management.kubectl(ctx, "--namespace", s.Cluster, "patch", "taloscontrolplane", s.Cluster+"-control-plane",
			"--type=merge", "--patch", fmt.Sprintf(`{"spec":{"version":%q}}`, version))
		return err
	}); err != nil {
		return "", err
	}
	if err := s.poll(ctx, func(ctx context.Context) error {
		machines := &clusterv1.MachineList{}
		if err := s.client.List(ctx, machines, client.InNamespace(s.Cluster), client.HasLabels{clusterv1.MachineControlPlaneLabel}); err != nil {
			return err
		}
		for i := range machines.Items {
			if found := machines.Items[i].Spec.Version; found != version {
				return fmt.Errorf("machine %s has version %s", machines.Items[i].Name, found)
			}
		}
		return nil
	}); err != nil {
		return "", err
	}
	_, err := s.awaitNodes(ctx)
	return "control plane at " + version, err
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// poll waits for a condition; its last reason is in the error. Meanwhile people
// are told what is missing.
func (s *Scenario) poll(ctx context.Context, check func(context.Context) error) error {
	var last error
	said, next := "", s.Clock.Now().Add(tellInterval)
	err := wait.PollUntilContextCancel(ctx, pollInterval, true, func(ctx context.Context) (bool, error) {
		found := check(ctx)
		if found == nil {
			return true, nil
		}
		if s.Management.Check != nil {
			if err := s.Management.Check(); err != nil {
				return false, err
			}
		}
		if _, refused := errors.AsType[*refusedError](found); refused {
			return false, found
		}
		// What was cut off by the end of the wait tells nothing.
		if last == nil || ctx.Err() == nil {
			last = found
		}
		if now := s.Clock.Now(); now.After(next) && last.Error() != said {
			said, next = last.Error(), now.Add(tellInterval)
			fmt.Fprintf(s.Output, "    still missing: %s\n", strings.ReplaceAll(said, "\n", "\n      "))
		}
		return false, nil
	})
	if err != nil {
		return errors.Join(err, last)
	}
	return nil
}

// refusedError is what trying again does not help against.
type refusedError struct{ error }

// Unwrap returns the cause.
func (e *refusedError) Unwrap() error { return e.error }

// final marks an error of the API server that trying again does not help
// against. A manager that does not answer its webhook is no such error.
func final(err error) error {
	if apierrors.IsInvalid(err) || apierrors.IsForbidden(err) || apierrors.IsBadRequest(err) {
		return &refusedError{err}
	}
	return err
}

func (s *Scenario) addHosts(ctx context.Context) (string, error) {
	if err := s.createNamespace(ctx, nil); err != nil {
		return "", err
	}
	var err error
	if s.hosts, err = s.Fleet.Add(ctx, s.Hosts); err != nil {
		return "", err
	}
	for _, host := range s.hosts {
		manifest := host.Manifest(s.Cluster, map[string]string{"fleet": s.Fleet.Name()})
		if err := s.poll(ctx, func(ctx context.Context) error {
			return final(client.IgnoreAlreadyExists(s.client.Create(ctx, manifest)))
		}); err != nil {
			return "", fmt.Errorf("creating TalosHost %s: %w", host.Name, err)
		}
	}
	return plural(len(s.hosts), "host") + " Available", s.awaitAvailable(ctx)
}

func (s *Scenario) awaitAvailable(ctx context.Context) error {
	return s.poll(ctx, func(ctx context.Context) error {
		hosts := &infrav1.TalosHostList{}
		if err := s.client.List(ctx, hosts, client.InNamespace(s.Cluster)); err != nil {
			return err
		}
		var missing []string
		for i := range hosts.Items {
			if host := &hosts.Items[i]; host.Status.State != infrav1.HostAvailable {
				missing = append(missing, fmt.Sprintf("%s is %s: %s", host.Name, host.Status.State, message(host, infrav1.AvailableCondition)))
			}
		}
		if len(missing) > 0 {
			return errors.New(strings.Join(missing, "; "))
		}
		return nil
	})
}

func message(object conditions.Getter, kind string) string {
	if found := conditions.Get(object, kind); found != nil {
		return found.Reason + ": " + found.Message
	}
	return "no condition " + kind
}

// createCluster generates the cluster from the template and applies it.
func (s *Scenario) createCluster(ctx context.Context) (string, error) {
	generate := s.generateMetal
	if s.InPods {
		generate = s.generatePods
	}
	manifest, err := generate(ctx)
	if err != nil {
		return "", err
	}
	if err := s.write(s.Cluster+".yaml", manifest); err != nil {
		return "", err
	}
	if err := s.apply(ctx, manifest); err != nil {
		return "", err
	}
	return "Cluster Available", s.poll(ctx, func(ctx context.Context) error {
		cluster := &clusterv1.Cluster{}
		if err := s.client.Get(ctx, client.ObjectKey{Namespace: s.Cluster, Name: s.Cluster}, cluster); err != nil {
			return err
		}
		if !conditions.IsTrue(cluster, clusterv1.AvailableCondition) {
			return errors.New(message(cluster, clusterv1.AvailableCondition))
		}
		return nil
	})
}

// generateMetal makes the manifests of a cluster on machines of the fleet.
func (s *Scenario) generateMetal(ctx context.Context) ([]byte, error) {
	endpoint, err := s.Fleet.Endpoint(ctx, s.Cluster)
	if err != nil {
		return nil, fmt.Errorf("reserving an endpoint: %w", err)
	}
	return s.generate(ctx, "metal", map[string]string{
		"CONTROL_PLANE_ENDPOINT_HOST": endpoint.Host,
		"CONTROL_PLANE_ENDPOINT_PORT": strconv.Itoa(int(endpoint.Port)),
		"TALOS_VERSION":               fleet.Contract(s.Fleet),
	})
}

// generate has the real clusterctl do it.
func (s *Scenario) generate(ctx context.Context, flavor string, variables map[string]string) ([]byte, error) {
	all := maps.Clone(variables)
	maps.Copy(all, s.Variables)
	return s.Management.Clusterctl.Generate(ctx, s.Cluster, all,
		"--infrastructure", "talos", "--flavor", flavor, "--target-namespace", s.Cluster, "--kubernetes-version", s.Fleet.KubernetesVersion(),
		"--control-plane-machine-count", strconv.Itoa(s.controlPlanes), "--worker-machine-count", strconv.Itoa(s.Workers[0]))
}

// createNamespace creates the namespace of the cluster.
func (s *Scenario) createNamespace(ctx context.Context, labels map[string]string) error {
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: s.Cluster, Labels: labels}}
	if err := s.client.Create(ctx, namespace); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("creating the namespace: %w", err)
	}
	return nil
}

// apply applies manifests on the server's side. An object that is refused
// because a manager does not answer is tried again.
func (s *Scenario) apply(ctx context.Context, manifests []byte) error {
	objects, err := management.Objects(manifests)
	if err != nil {
		return err
	}
	for _, object := range objects {
		err := s.poll(ctx, func(ctx context.Context) error {
			return final(s.client.Apply(ctx, client.ApplyConfigurationFromUnstructured(object), fieldOwner, client.ForceOwnership))
		})
		if err != nil {
			return fmt.Errorf("applying %s %s: %w", object.GetKind(), object.GetName(), err)
		}
	}
	return nil
}

// awaitNodes waits until the Machines run, their Nodes are ready and the control
// plane is complete.
func (s *Scenario) awaitNodes(ctx context.Context) (string, error) {
	want := s.controlPlanes + s.workers
	return plural(want, "Node") + " Ready", s.poll(ctx, func(ctx context.Context) error {
		machines := &clusterv1.MachineList{}
		if err := s.client.List(ctx, machines, client.InNamespace(s.Cluster)); err != nil {
			return err
		}
		if len(machines.Items) != want {
			return fmt.Errorf("there are %d Machines", len(machines.Items))
		}
		for i := range machines.Items {
			machine := &machines.Items[i]
			switch {
			case !conditions.IsTrue(machine, clusterv1.MachineNodeReadyCondition):
				return fmt.Errorf("the Node of Machine %s: %s", machine.Name, message(machine, clusterv1.MachineNodeReadyCondition))
			case !strings.HasPrefix(machine.Spec.ProviderID, infrav1.ProviderIDPrefix):
				return fmt.Errorf("machine %s has provider ID %q", machine.Name, machine.Spec.ProviderID)
			case !conditions.IsTrue(machine, clusterv1.MachineReadyCondition):
				return fmt.Errorf("machine %s: %s", machine.Name, message(machine, clusterv1.MachineReadyCondition))
			}
		}
		if err := s.expectControlPlane(ctx); err != nil {
			return err
		}
		if s.InPods {
			return s.expectPods(ctx, machines.Items)
		}
		return s.expectClaims(ctx, want)
	})
}

// expectControlPlane wants the control plane to say that all of its Machines are
// up to date and available, and that etcd is healthy.
func (s *Scenario) expectControlPlane(ctx context.Context) error {
	controlPlane := &controlplanev1.TalosControlPlane{}
	if err := s.client.Get(ctx, client.ObjectKey{Namespace: s.Cluster, Name: s.Cluster + "-control-plane"}, controlPlane); err != nil {
		return err
	}
	status := controlPlane.Status
	for name, count := range map[string]*int32{
		"replicas": status.Replicas, "readyReplicas": status.ReadyReplicas, "availableReplicas": status.AvailableReplicas, "upToDateReplicas": status.UpToDateReplicas,
	} {
		if got := int(ptr.Deref(count, 0)); got != s.controlPlanes {
			return fmt.Errorf("status.%s of the TalosControlPlane is %d", name, got)
		}
	}
	for _, condition := range []string{controlplanev1.AvailableCondition, controlplanev1.EtcdClusterHealthyCondition} {
		if !conditions.IsTrue(controlPlane, condition) {
			return fmt.Errorf("the TalosControlPlane is not %s: %s", condition, message(controlPlane, condition))
		}
	}
	return nil
}

// expectClaims compares the number of hosts in use.
func (s *Scenario) expectClaims(ctx context.Context, want int) error {
	hosts := &infrav1.TalosHostList{}
	if err := s.client.List(ctx, hosts, client.InNamespace(s.Cluster)); err != nil {
		return err
	}
	used := 0
	for i := range hosts.Items {
		if hosts.Items[i].Spec.ConsumerRef.Name != "" {
			used++
		}
	}
	if used != want {
		return fmt.Errorf("%d of %d hosts are in use instead of %d", used, len(hosts.Items), want)
	}
	return nil
}

// scale runs the real kubectl, as users do, and waits for the Nodes. It is tried
// again while a webhook does not answer.
func (s *Scenario) scale(ctx context.Context, kind, name string, count int) (string, error) {
	if err := s.poll(ctx, func(ctx context.Context) error {
		_, err := s.Management.kubectl(ctx, "--namespace", s.Cluster, "scale", kind, name, "--replicas="+strconv.Itoa(count))
		return err
	}); err != nil {
		return "", err
	}
	return s.awaitNodes(ctx)
}

// scaleControlPlane scales the control plane while its API server is asked all
// the time whether it is ready, and returns for how long it was not at most.
func (s *Scenario) scaleControlPlane(ctx context.Context, count int) (string, time.Duration, error) {
	secret := &corev1.Secret{}
	if err := s.client.Get(ctx, client.ObjectKey{Namespace: s.Cluster, Name: s.Cluster + "-kubeconfig"}, secret); err != nil {
		return "", 0, fmt.Errorf("reading the kubeconfig of the cluster: %w", err)
	}
	readyz, err := WatchReadyz(ctx, secret.Data["value"])
	if err != nil {
		return "", 0, err
	}
	outcome, err := s.scale(ctx, "taloscontrolplane", s.Cluster+"-control-plane", count)
	unready, asked, failed := readyz.Stop()
	fmt.Fprintf(s.Output, "    /readyz through the endpoint: asked %d times, %d times not ready, longest time between two that were: %.1f s\n",
		asked, failed, unready.Seconds())
	return outcome, unready, err
}

func (s *Scenario) deleteCluster(ctx context.Context) (string, error) {
	return "Cluster gone", s.poll(ctx, func(ctx context.Context) error {
		cluster := &clusterv1.Cluster{}
		if err := s.client.Get(ctx, client.ObjectKey{Namespace: s.Cluster, Name: s.Cluster}, cluster); err != nil {
			return client.IgnoreNotFound(err)
		}
		if cluster.DeletionTimestamp.IsZero() {
			if err := client.IgnoreNotFound(s.client.Delete(ctx, cluster)); err != nil {
				return err
			}
			return errors.New("the Cluster is asked to go")
		}
		machines := &clusterv1.MachineList{}
		if err := s.client.List(ctx, machines, client.InNamespace(s.Cluster)); err != nil {
			return err
		}
		return fmt.Errorf("%s left", plural(len(machines.Items), "Machine"))
	})
}

// awaitWiped waits until all hosts are available, and looks at the machines
// past every API.
func (s *Scenario) awaitWiped(ctx context.Context) (string, error) {
	if err := s.awaitAvailable(ctx); err != nil {
		return "", err
	}
	if err := s.expectClaims(ctx, 0); err != nil {
		return "", err
	}
	for _, host := range s.hosts {
		if err := s.Fleet.Wiped(ctx, host); err != nil {
			return "", err
		}
	}
	return plural(len(s.hosts), "host") + " Available, wiped", nil
}
