package bench

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"text/tabwriter"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/capi-talos/capi-talos/test/stack/process"
)

// restTime is for how long the managers are watched while there is nothing to do.
const restTime = time.Minute

// sizes prints what our managers take of the machine when they hold nothing, and
// when they hold clusters that need nothing.
func (b *Bench) sizes(ctx context.Context) error {
	empty, err := b.atRest(ctx)
	if err != nil {
		return err
	}
	const namespace = "size"
	hosts, err := b.Sim.Add(ctx, b.Clusters)
	if err != nil {
		return err
	}
	b.say("creating %d clusters", b.Clusters)
	names := make([]string, 0, len(hosts))
	for i, host := range hosts {
		name := fmt.Sprintf("%s-%d", namespace, i)
		objects, err := b.generate(ctx, b.Sim, name, 1)
		if err != nil {
			return err
		}
		if err := b.client.addHosts(ctx, name, hosts[i:i+1]); err != nil {
			return fmt.Errorf("adding %s: %w", host.Name, err)
		}
		if err := b.client.createAll(ctx, objects); err != nil {
			return err
		}
		names = append(names, name)
	}
	for _, name := range names {
		if err := b.client.awaitAvailable(ctx, name, 1); err != nil {
			return fmt.Errorf("cluster %s: %w", name, err)
		}
	}
	full, err := b.atRest(ctx)
	if err != nil {
		return err
	}
	b.printSizes(empty, full)
	b.say("deleting %d clusters", len(names))
	var deletions errgroup.Group
	for _, name := range names {
		deletions.Go(func() error { return b.client.deleteCluster(ctx, name) })
	}
	return deletions.Wait()
}

// size is what a manager takes of the machine.
type size struct {
	// residentMiB is its memory, fileMiB what of it are pages of its own program,
	// cpu its processor time in each second.
	residentMiB, fileMiB, cpu float64
}

// atRest watches our managers for a while.
func (b *Bench) atRest(ctx context.Context) (map[string]size, error) {
	before, err := b.usage()
	if err != nil {
		return nil, err
	}
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-time.After(restTime):
	}
	after, err := b.usage()
	if err != nil {
		return nil, err
	}
	found := map[string]size{}
	for name, usage := range after {
		found[name] = size{residentMiB: usage.ResidentMiB, fileMiB: usage.FileMiB, cpu: (usage.CPUSeconds - before[name].CPUSeconds) / restTime.Seconds()}
	}
	return found, nil
}

func (b *Bench) usage() (map[string]process.Usage, error) {
	found := map[string]process.Usage{}
	for _, name := range b.Stack.Managers.Ours() {
		usage, err := process.UsageOf(b.Stack.Managers.Get(name).PID())
		if err != nil {
			return nil, err
		}
		found[name] = usage
	}
	return found, nil
}

func (b *Bench) printSizes(empty, full map[string]size) {
	out := tabwriter.NewWriter(b.Output, 0, 0, 2, ' ', 0)
	fmt.Fprintf(out, "\nMANAGER AT REST\tMiB, NO CLUSTER\tOF ITS PROGRAM\tGOAL\tCPU\tMiB, %d CLUSTERS\tCPU\n", b.Clusters)
	const percent = 100
	for _, name := range slices.Sorted(maps.Keys(empty)) {
		fmt.Fprintf(out, "%s\t%.0f\t%.0f\t%s\t%.1f %%\t%.0f\t%.1f %%\n", name, empty[name].residentMiB, empty[name].fileMiB,
			verdict(empty[name].residentMiB <= maxIdleMiB, fmt.Sprintf("≤ %d", maxIdleMiB)), percent*empty[name].cpu, full[name].residentMiB, percent*full[name].cpu)
	}
	_ = out.Flush()
}
