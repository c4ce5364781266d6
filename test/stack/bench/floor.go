package bench

import (
	"context"
	"fmt"
	"time"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/configgen"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/secrets"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
	"github.com/capi-talos/capi-talos/test/sim/fleet"
)

// contract is that of the configurations, as the template's default has it.
const contract = "v1.13"

// floor builds a control plane with nothing but the Talos calls that it takes. The
// configurations are made before the time begins.
func (b *Bench) floor(ctx context.Context, name string) (stages, error) {
	hosts, endpoint, err := b.machines(ctx, name)
	if err != nil {
		return stages{}, err
	}
	defer b.destroy(ctx, hosts)
	bundle, err := secrets.NewBundle(time.Now(), contract, nil)
	if err != nil {
		return stages{}, err
	}
	configurations := make([][]byte, 0, len(hosts))
	for _, host := range hosts {
		configuration, err := b.configuration(name, endpoint, bundle, host)
		if err != nil {
			return stages{}, err
		}
		configurations = append(configurations, configuration)
	}
	open, err := entryOf(bundle, name, endpoint)
	if err != nil {
		return stages{}, err
	}
	pool := talosclient.New()
	defer pool.Close()

	watch := b.observe(ctx, hosts, func(context.Context) (entry, error) { return open, nil })
	if err := apply(ctx, pool, hosts[0], configurations[0]); err != nil {
		return stages{}, err
	}
	if err := poll(ctx, func(ctx context.Context) error {
		node, err := pool.Secure(ctx, hosts[0].Address, open.talos)
		if err != nil {
			return err
		}
		defer func() { _ = node.Close() }()
		return node.Bootstrap(ctx)
	}); err != nil {
		return stages{}, fmt.Errorf("bootstrapping etcd: %w", err)
	}
	if err := watch.first(ctx); err != nil {
		return stages{}, err
	}
	watch.begin()
	for i, host := range hosts[1:] {
		if err := apply(ctx, pool, host, configurations[i+1]); err != nil {
			return stages{}, err
		}
		// Each joins after the one before is a voter.
		const first = 2
		if err := watch.voters(ctx, first+i); err != nil {
			return stages{}, err
		}
	}
	return watch.end(ctx)
}

// machines boots the machines of one control plane, and reserves its endpoint.
func (b *Bench) machines(ctx context.Context, name string) ([]fleet.Host, fleet.Endpoint, error) {
	hosts, err := b.Fleet.Add(ctx, controlPlanes)
	if err != nil {
		return nil, fleet.Endpoint{}, err
	}
	endpoint, err := b.Fleet.Endpoint(ctx, name)
	return hosts, endpoint, err
}

// destroy takes machines away, so that those of the next measurement are alone.
func (b *Bench) destroy(ctx context.Context, hosts []fleet.Host) {
	for _, host := range hosts {
		if err := b.Fleet.Destroy(context.WithoutCancel(ctx), host); err != nil {
			b.say("%v", err)
		}
	}
}

// configuration is the one that our providers hand over.
func (b *Bench) configuration(name string, endpoint fleet.Endpoint, bundle *secrets.Bundle, host fleet.Host) ([]byte, error) {
	rendered, err := configgen.Render(configgen.Input{
		Role: configgen.RoleControlPlane, Contract: contract, ClusterName: name, KubernetesVersion: b.Fleet.KubernetesVersion(),
		Endpoint: urlOf(endpoint), Secrets: bundle.Machinery(), Hostname: name + "-" + host.Name,
	})
	if err != nil {
		return nil, err
	}
	return configgen.Overlay(rendered, configgen.HostOverlay{
		StrategicPatches: host.StrategicPatches, ProviderID: "talos://" + name + "/" + host.Name, InstallDisk: host.InstallDisk,
		Container: host.InstallDisk == "", Release: b.Fleet.TalosVersion(),
	})
}

func urlOf(endpoint fleet.Endpoint) string {
	return fmt.Sprintf("https://%s:%d", endpoint.Host, endpoint.Port)
}

// apply hands a configuration over.
func apply(ctx context.Context, pool *talosclient.Pool, host fleet.Host, configuration []byte) error {
	if err := poll(ctx, func(ctx context.Context) error {
		node, err := pool.Maintenance(ctx, host.Address, "")
		if err != nil {
			return err
		}
		defer func() { _ = node.Close() }()
		return node.ApplyConfiguration(ctx, configuration)
	}); err != nil {
		return fmt.Errorf("handing a configuration over to %s: %w", host.Name, err)
	}
	return nil
}
