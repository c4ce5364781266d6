package vms

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/siderolabs/talos/pkg/machinery/api/machine"
	talos "github.com/siderolabs/talos/pkg/machinery/client"
	clientconfig "github.com/siderolabs/talos/pkg/machinery/client/config"
	"google.golang.org/protobuf/types/known/emptypb"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/secrets"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/test/sim/fleet/conformance"
	"github.com/capi-talos/capi-talos/test/stack/management"
	"github.com/capi-talos/capi-talos/test/stack/parts"
)

// callTimeout is how long a call of the Talos API may take.
const callTimeout = 10 * time.Second

// release is a change of the release that a machine runs.
type release struct {
	name string
	// ask asks Talos for it, and returns what it answers.
	ask func(context.Context, *talos.Client) (string, error)
	// runs is what the machine runs at the end, and systems what its boot loader has.
	runs    string
	systems []string
}

// TestAnUpgradeAndAFallback has a machine of a cluster upgraded by Talos' API, rolled back, and
// upgraded to what does not start, from which Talos falls back by itself. Nothing on its disks
// is lost, etcd stays the member that it was, and the TalosMachine tells a release that it was
// not made for. What the machine tells meanwhile is the record to which talossim is to be held
// once it can be upgraded.
func TestAnUpgradeAndAFallback(t *testing.T) {
	const personality = "metal-upgrade"
	g := NewWithT(t)
	mayBoot(t)
	needKept(t, personality)
	machines := raise(t, volumes, append(PreviousParts(), parts.BrokenTalosInstallerImage)...)
	ctx, cancel := context.WithTimeout(t.Context(), 2*StepTimeout)
	defer cancel()
	machines.SetNetworkBoot(NetworkBoot{Part: parts.PreviousTalosBoot})
	const name = "upgrade"
	l := newLives(t, machines, name, nil)
	l.createCluster(ctx, t, infrav1.ReleaseWipeSystem, former(name))
	l.step(ctx, t, "to run "+parts.PreviousTalosVersion, func(ctx context.Context) error { return l.expectRelease(ctx, parts.PreviousTalosVersion) })
	bundle, err := secrets.GetBundle(ctx, l.client, client.ObjectKey{Namespace: name, Name: name})
	g.Expect(err).NotTo(HaveOccurred())

	taken := conformance.Record{Talos: parts.TalosVersion, Personality: personality, Scenarios: map[string][]string{}}
	for _, change := range []release{
		{
			name: "upgraded", ask: upgradeTo(parts.TalosVersion), runs: parts.TalosVersion,
			systems: []string{parts.PreviousTalosVersion, parts.TalosVersion},
		},
		{
			name: "rolled back", ask: rollBack, runs: parts.PreviousTalosVersion,
			systems: []string{parts.PreviousTalosVersion, parts.TalosVersion},
		},
		{
			name: "fallen back", ask: upgradeTo(parts.BrokenTalosVersion), runs: parts.PreviousTalosVersion,
			// That of the same name is there when it is written.
			systems: []string{parts.PreviousTalosVersion, parts.TalosVersion + "~1"},
		},
	} {
		taken.Scenarios[change.name] = l.change(ctx, t, bundle, change)
		for _, line := range taken.Scenarios[change.name] {
			t.Logf("%s: %s", change.name, line)
		}
	}
	keepOrCompare(t, taken)
}

// former is the shape of a cluster of the release before.
func former(name string) management.Shape {
	return management.Shape{
		Name: name, Version: parts.PreviousKubernetesVersion,
		Variables: map[string]string{"TALOS_VERSION": "v1.12", "TALOS_RELEASE": parts.PreviousTalosVersion},
	}
}

func upgradeTo(version string) func(context.Context, *talos.Client) (string, error) {
	return func(ctx context.Context, node *talos.Client) (string, error) {
		answer, err := node.MachineClient.Upgrade(ctx, &machine.UpgradeRequest{Image: "ghcr.io/siderolabs/installer:" + version, Preserve: true})
		if err != nil {
			return "", err
		}
		return answer.GetMessages()[0].GetAck(), nil
	}
}

func rollBack(ctx context.Context, node *talos.Client) (string, error) {
	_, err := node.MachineClient.Rollback(ctx, &machine.RollbackRequest{})
	return "no words", err
}

// change changes the release of the machine, and returns what is seen of that.
func (l *lives) change(ctx context.Context, t *testing.T, bundle *secrets.Bundle, wanted release) []string {
	t.Helper()
	g := NewWithT(t)
	node, err := l.dial(ctx, l.namespace, l.machine.Host.Address)
	g.Expect(err).NotTo(HaveOccurred())
	defer func() { _ = node.Close() }()
	boot, err := bootOf(ctx, node)
	g.Expect(err).NotTo(HaveOccurred())
	member, err := memberOf(ctx, bundle, l.machine.Host.Address)
	g.Expect(err).NotTo(HaveOccurred())

	stages, err := l.watchStages(ctx, bundle)
	g.Expect(err).NotTo(HaveOccurred())
	answer, err := wanted.ask(ctx, node)
	g.Expect(err).NotTo(HaveOccurred())
	seen := []string{"answer: " + answer}
	for stage := range stages {
		seen = append(seen, "stage until it is cut off: "+stage)
	}
	l.step(ctx, t, "to be "+wanted.name, func(ctx context.Context) error {
		if now, err := bootOf(ctx, node); err != nil || now == boot {
			return errors.Join(fmt.Errorf("machine %s has not booted again", l.machine.Host.Name), err)
		}
		if now, err := memberOf(ctx, bundle, l.machine.Host.Address); err != nil || now != member {
			return errors.Join(fmt.Errorf("etcd of machine %s is member %x instead of %x", l.machine.Host.Name, now, member), err)
		}
		return l.expectTold(ctx, wanted.runs)
	})
	g.Expect(l.machine.Systems(ctx)).To(Equal(wanted.systems))
	g.Expect(l.expectDisks(ctx, inUse(), "")).To(Succeed())
	return append(seen, "it runs "+wanted.runs, "etcd is the member that it was")
}

// expectTold wants the TalosMachine to tell the release that the machine runs, and whether it
// is the one that it was made for.
func (l *lives) expectTold(ctx context.Context, version string) error {
	if version == parts.PreviousTalosVersion {
		return l.expectRelease(ctx, version)
	}
	told, err := l.talosMachine(ctx)
	if err == nil && (told.Status.TalosVersion != version || conditions.GetReason(told, infrav1.RunningCondition) != infrav1.WrongReleaseReason) {
		err = fmt.Errorf("TalosMachine %s runs %q: %s", told.Name, told.Status.TalosVersion, conditions.GetMessage(told, infrav1.RunningCondition))
	}
	return err
}

// watchStages tells each stage of the machine after the present one, until it is cut off. It
// returns once the machine has told the present one.
func (l *lives) watchStages(ctx context.Context, bundle *secrets.Bundle) (<-chan string, error) {
	stages, began, ended := make(chan string), make(chan struct{}), make(chan error, 1)
	go func() {
		defer close(stages)
		last := ""
		ended <- call(ctx, bundle, l.machine.Host.Address, func(node talosclient.Node) error {
			return node.WatchMachineStatus(ctx, func(status talosclient.MachineStatus) {
				switch last {
				case "":
					close(began)
				case status.Stage:
				default:
					select {
					case stages <- status.Stage:
					case <-ctx.Done():
					}
				}
				last = status.Stage
			})
		})
	}()
	select {
	case <-began:
		return stages, nil
	case err := <-ended:
		return nil, errors.Join(fmt.Errorf("machine %s cannot be watched", l.machine.Host.Name), err)
	}
}

// dial connects to the Talos API at an address with the talosconfig of a cluster, for what our
// own client does not offer.
func (l *lives) dial(ctx context.Context, cluster, address string) (*talos.Client, error) {
	secret := &corev1.Secret{}
	if err := l.client.Get(ctx, client.ObjectKey{Namespace: l.namespace, Name: cluster + "-talosconfig"}, secret); err != nil {
		return nil, err
	}
	access, err := clientconfig.FromBytes(secret.Data["talosconfig"])
	if err != nil {
		return nil, err
	}
	return talos.New(ctx, talos.WithConfig(access), talos.WithEndpoints(address))
}

// bootOf is when the machine has booted.
func bootOf(ctx context.Context, node *talos.Client) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	answer, err := node.MachineClient.SystemStat(ctx, &emptypb.Empty{})
	if err != nil {
		return 0, err
	}
	return answer.GetMessages()[0].GetBootTime(), nil
}

// memberOf is the member of etcd that the machine is.
func memberOf(ctx context.Context, bundle *secrets.Bundle, address string) (member uint64, err error) {
	err = call(ctx, bundle, address, func(node talosclient.Node) error {
		status, err := node.EtcdStatus(ctx)
		member = status.MemberID
		return err
	})
	return member, err
}
