package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/secrets"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
	"github.com/capi-talos/capi-talos/test/sim/fleet"
)

// entry is what opens a cluster.
type entry struct {
	talos      talosclient.Credentials
	kubernetes *rest.Config
}

// accessLife is how long the credentials of an observer are good.
const accessLife = 24 * time.Hour

// entryOf makes the entry to a cluster of a bundle.
func entryOf(bundle *secrets.Bundle, name string, endpoint fleet.Endpoint) (entry, error) {
	talos, err := bundle.ClientCredentials(secrets.RoleAdmin, time.Now(), accessLife)
	if err != nil {
		return entry{}, err
	}
	kubeconfig, err := bundle.EnsureKubeconfig(name, urlOf(endpoint), nil, time.Now(), false)
	if err != nil {
		return entry{}, err
	}
	config, err := clientcmd.RESTConfigFromKubeConfig(kubeconfig.Content)
	if err != nil {
		return entry{}, fmt.Errorf("reading a kubeconfig: %w", err)
	}
	return entry{talos, config}, nil
}

// observer looks at the machines of a control plane from outside, in the same way
// for the floor and for ours.
type observer struct {
	bench *Bench
	hosts []fleet.Host
	open  func(context.Context) (entry, error)
	pool  *talosclient.Pool

	start time.Time
	entry entry
	// number is the machine of the fleet that is the first.
	number int
	found  stages
}

// observe begins to measure. open gives the entry to the cluster once there is
// one.
func (b *Bench) observe(_ context.Context, hosts []fleet.Host, open func(context.Context) (entry, error)) *observer {
	return &observer{bench: b, hosts: hosts, open: open, pool: talosclient.New(), start: time.Now()}
}

// first waits until the first control plane machine is Ready, and notes the
// stages up to there.
func (o *observer) first(ctx context.Context) error {
	for _, stage := range []struct {
		name string
		at   *time.Duration
		look func(context.Context) error
	}{
		{"a Talos API with the cluster's certificate", &o.found.certificate, o.certificate},
		{"a member of etcd", &o.found.etcd, func(ctx context.Context) error { return o.members(ctx, 0) }},
		{"the API server", &o.found.api, o.ready},
		{"the Node", &o.found.node, func(ctx context.Context) error { return o.nodes(ctx, 1) }},
	} {
		if err := poll(ctx, stage.look); err != nil {
			return fmt.Errorf("waiting for %s: %w", stage.name, err)
		}
		*stage.at = time.Since(o.start)
	}
	return nil
}

// begin begins the growth to three.
func (o *observer) begin() { o.start = time.Now() }

// voters waits until etcd has that many voting members.
func (o *observer) voters(ctx context.Context, count int) error {
	if err := poll(ctx, func(ctx context.Context) error { return o.members(ctx, count) }); err != nil {
		return fmt.Errorf("waiting for %d voting members: %w", count, err)
	}
	return nil
}

// end waits until all is there, and returns what was found.
func (o *observer) end(ctx context.Context) (stages, error) {
	defer o.pool.Close()
	if err := o.voters(ctx, controlPlanes); err != nil {
		return stages{}, err
	}
	if err := poll(ctx, func(ctx context.Context) error { return o.nodes(ctx, controlPlanes) }); err != nil {
		return stages{}, fmt.Errorf("waiting for %d Nodes: %w", controlPlanes, err)
	}
	o.found.grown = time.Since(o.start)
	return o.found, nil
}

// certificate finds the machine that became the first.
func (o *observer) certificate(ctx context.Context) error {
	var err error
	if o.entry, err = o.open(ctx); err != nil {
		return err
	}
	var failures []error
	for i, host := range o.hosts {
		node, err := o.pool.Secure(ctx, host.Address, o.entry.talos)
		if err == nil {
			o.number = i
			return node.Close()
		}
		failures = append(failures, err)
	}
	return errors.Join(failures...)
}

// members asks the first machine's etcd for its voting members; with 0 any member
// will do.
func (o *observer) members(ctx context.Context, count int) error {
	ctx, cancel := context.WithTimeout(ctx, glancePatience)
	defer cancel()
	node, err := o.pool.Secure(ctx, o.hosts[o.number].Address, o.entry.talos)
	if err != nil {
		return err
	}
	defer func() { _ = node.Close() }()
	members, err := node.EtcdMembers(ctx)
	if err != nil || count == 0 {
		return err
	}
	voting := 0
	for _, member := range members {
		if !member.Learner {
			voting++
		}
	}
	if voting != count {
		return fmt.Errorf("there are %d", voting)
	}
	return nil
}

func (o *observer) workload() (*kubernetes.Clientset, error) {
	config := rest.CopyConfig(o.entry.kubernetes)
	config.Timeout = glancePatience
	return kubernetes.NewForConfig(config)
}

func (o *observer) ready(ctx context.Context) error {
	workload, err := o.workload()
	if err != nil {
		return err
	}
	_, err = workload.RESTClient().Get().AbsPath("/readyz").DoRaw(ctx)
	return err
}

// nodes wants that many Nodes, all Ready.
func (o *observer) nodes(ctx context.Context, count int) error {
	workload, err := o.workload()
	if err != nil {
		return err
	}
	list, err := workload.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	ready := 0
	for _, node := range list.Items {
		for _, condition := range node.Status.Conditions {
			if condition.Type == corev1.NodeReady && condition.Status == corev1.ConditionTrue {
				ready++
			}
		}
	}
	if ready != count {
		return fmt.Errorf("%d of %d Nodes are Ready", ready, count)
	}
	return nil
}

// glancePatience is how long a machine may take to answer an observer: a longer one
// would measure itself.
const glancePatience = 2 * time.Second

// poll waits until something succeeds. The last reason why it did not is in the
// error.
func poll(ctx context.Context, done func(context.Context) error) error {
	var last error
	err := wait.PollUntilContextCancel(ctx, pollInterval, true, func(ctx context.Context) (bool, error) {
		if err := done(ctx); ctx.Err() == nil || err == nil {
			last = err
		}
		return last == nil, nil
	})
	if err != nil {
		return errors.Join(err, last)
	}
	return nil
}
