package talosclient

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/siderolabs/talos/pkg/machinery/api/machine"
)

// modeContainer is the platform mode of Talos in a container.
const modeContainer = "container"

// serviceStarting is the state with which a Talos service begins to start.
const serviceStarting = "Starting"

// Restart implements Node. Talos refuses to reboot in a container
// (internal/app/machined/pkg/runtime/mode.go). What a reset is there is the end of all
// services and of the container
// (internal/app/machined/pkg/runtime/v1alpha1/v1alpha1_sequencer.go, Reset). It names
// the user disks, and none of them, so that it could wipe nothing anywhere.
func (n *node) Restart(ctx context.Context) error {
	info, err := n.version(ctx)
	if err != nil {
		return err
	}
	ctx, cancel := bounded(ctx)
	defer cancel()
	if info.GetPlatform().GetMode() == modeContainer {
		err = n.ResetGeneric(ctx, &machine.ResetRequest{Graceful: false, Reboot: true, Mode: machine.ResetRequest_USER_DISKS})
	} else {
		err = n.Reboot(ctx)
	}
	if err != nil {
		return fmt.Errorf("restarting the node: %w", err)
	}
	return nil
}

// started is when a service began to start for the last time. Talos keeps the last 64
// events of a service: where that one is not among them any more, it is the oldest.
func started(events []*machine.ServiceEvent) time.Time {
	first := events[0]
	for _, event := range slices.Backward(events) {
		if event.GetState() == serviceStarting {
			first = event
			break
		}
	}
	if first.GetTs() == nil {
		return time.Time{}
	}
	return first.GetTs().AsTime()
}
