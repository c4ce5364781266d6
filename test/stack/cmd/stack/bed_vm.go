package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"

	"github.com/capi-talos/capi-talos/test/stack/demo"
	"github.com/capi-talos/capi-talos/test/stack/parts"
	"github.com/capi-talos/capi-talos/test/stack/vms"
)

const (
	// onDisks is the mode in which machines have disks, and boot over the network.
	onDisks = "vm"
	// vmBridge is the device of their network.
	vmBridge = "capt-dvm"
)

// vmBed is the bed with virtual machines. Where these are emulated a demo takes an hour, so
// its mode has to be asked for: it is the last of all kinds.
func vmBed() bedKind {
	return bedKind{
		mode: onDisks, name: "vm", what: "a management cluster of plain processes, real Talos on the disks of virtual machines",
		possible: func() bool { return vms.Reason() == "" }, raise: raiseVMs,
	}
}

// raiseVMs needs root.
func raiseVMs(ctx context.Context, set settings) (*bed, error) {
	if reason := vms.Reason(); reason != "" {
		return nil, fmt.Errorf("there can be no virtual machines here: %s; FLEET=sim needs nothing", reason)
	}
	fmt.Fprintln(set.output, "==> building the parts that are missing")
	built, err := parts.Ensure(ctx, parts.Print(set.output), vms.Parts()...)
	if err != nil {
		return nil, err
	}
	fmt.Fprintln(set.output, "==> starting the surroundings of the machines")
	machines, err := vms.Up(ctx, vms.Options{
		Bridge: vmBridge, Subnet: netip.MustParsePrefix("10.78.0.0/24"), Dir: filepath.Join(set.dir, "machines"), Built: built,
	})
	if err != nil {
		return nil, err
	}
	stack, err := startManagement(ctx, set)
	if err != nil {
		return nil, errors.Join(err, machines.Close(context.WithoutCancel(ctx)))
	}
	return &bed{
		management: demo.ManagementOf(stack), fleet: machines, storeHost: loopback,
		// More of them at a time would take each other's processors.
		controlPlanes: []int{1}, workers: []int{1, 2}, stepTimeout: vms.StepTimeout,
		stop: func(ctx context.Context) error { return errors.Join(machines.Close(ctx), stack.Stop(ctx)) },
	}, nil
}
