package talossim

import (
	"context"
	"fmt"
	"path"
	"runtime"
	"slices"
	"strings"

	"github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/constants"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// api is the machine service, in maintenance mode or configured. What it lacks
// is unimplemented. The answers are those of
// internal/app/machined/internal/server/v1alpha1/v1alpha1_server.go.
type api struct {
	machine.UnimplementedMachineServiceServer
	boot *boot
	// settings are nil in maintenance mode.
	settings *settings
}

// order hands an order to the boot. Only the first one counts.
func (a *api) order(next order) error {
	var taken bool
	a.boot.sim.look(func() {
		if taken = a.boot.give(next); taken && next.reset != nil {
			a.boot.machine.resets = append(a.boot.machine.resets, next.reset)
			a.boot.sim.judge.Reset(a.boot.machine.spec.Name, next.leave)
		}
	})
	if !taken {
		return status.Error(codes.FailedPrecondition, "sequence lock is held by another sequence")
	}
	return nil
}

// ApplyConfiguration takes a configuration in maintenance mode. Changing that of
// a configured machine is not simulated yet.
func (a *api) ApplyConfiguration(ctx context.Context, req *machine.ApplyConfigurationRequest) (*machine.ApplyConfigurationResponse, error) {
	if a.settings != nil {
		guard := &authorizer{machine: a.boot.machine}
		if !guard.rolesOf(ctx).Includes("os:admin") {
			return nil, errNotAuthorized
		}
	}
	if refusal := a.boot.machine.Faults().RefusesConfiguration; refusal != "" {
		return nil, status.Error(codes.InvalidArgument, refusal)
	}
	if _, err := a.boot.parse(ctx, req.GetData()); err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	if a.settings != nil {
		return nil, status.Error(codes.Unimplemented, "changing the configuration of a configured machine is not simulated")
	}
	if !req.GetDryRun() {
		taken := true
		a.boot.sim.look(func() {
			if !a.boot.taken {
				taken, a.boot.taken = false, true
				a.boot.give(order{apply: req.GetData()})
			}
		})
		if taken {
			// The machine is no longer in maintenance mode, and who calls is a reader.
			return nil, errNotAuthorized
		}
	}
	return &machine.ApplyConfigurationResponse{Messages: []*machine.ApplyConfiguration{{
		Mode: machine.ApplyConfigurationRequest_NO_REBOOT, ModeDetails: "Applied configuration without a reboot",
	}}}, nil
}

// Reboot boots the machine.
func (a *api) Reboot(context.Context, *machine.RebootRequest) (*machine.RebootResponse, error) {
	if err := a.onMetal(nil); err != nil {
		return nil, err
	}
	if err := a.order(order{}); err != nil {
		return nil, err
	}
	return &machine.RebootResponse{Messages: []*machine.Reboot{{}}}, nil
}

// onMetal refuses what a container cannot do; on metal it is lacking, if that is
// an error.
func (a *api) onMetal(lacking error) error {
	if a.boot.sim.options.Personality == Container {
		return status.Error(codes.FailedPrecondition, "method is not supported in container mode")
	}
	return lacking
}

// errLacking says that a call is not simulated on metal.
var errLacking = status.Error(codes.Unimplemented, "it is not simulated on metal")

// Shutdown is refused in a container.
func (a *api) Shutdown(context.Context, *machine.ShutdownRequest) (*machine.ShutdownResponse, error) {
	return nil, a.onMetal(errLacking)
}

// Rollback is refused in a container.
func (a *api) Rollback(context.Context, *machine.RollbackRequest) (*machine.RollbackResponse, error) {
	return nil, a.onMetal(errLacking)
}

// Upgrade is refused in a container.
func (a *api) Upgrade(context.Context, *machine.UpgradeRequest) (*machine.UpgradeResponse, error) {
	return nil, a.onMetal(errLacking)
}

// MetaWrite is refused in a container.
func (a *api) MetaWrite(context.Context, *machine.MetaWriteRequest) (*machine.MetaWriteResponse, error) {
	return nil, a.onMetal(errLacking)
}

// MetaDelete is refused in a container.
func (a *api) MetaDelete(context.Context, *machine.MetaDeleteRequest) (*machine.MetaDeleteResponse, error) {
	return nil, a.onMetal(errLacking)
}

// Version tells the release.
func (a *api) Version(context.Context, *emptypb.Empty) (*machine.VersionResponse, error) {
	personality := string(a.boot.sim.options.Personality)
	return &machine.VersionResponse{Messages: []*machine.Version{{
		Version:  &machine.VersionInfo{Tag: a.boot.release, Os: runtime.GOOS, Arch: runtime.GOARCH},
		Platform: &machine.PlatformInfo{Name: personality, Mode: personality},
		Features: &machine.FeaturesInfo{Rbac: true},
	}}}, nil
}

// ServiceList tells the services, as far as clients look at them.
func (a *api) ServiceList(context.Context, *emptypb.Empty) (*machine.ServiceListResponse, error) {
	var states []serviceState
	a.boot.sim.look(func() { states = a.boot.serviceStates() })
	list := &machine.ServiceList{}
	for _, state := range states {
		list.Services = append(list.Services, &machine.ServiceInfo{
			Id: state.id, State: state.state,
			Events: &machine.ServiceEvents{Events: []*machine.ServiceEvent{
				{State: "Starting", Msg: "Starting service", Ts: timestamppb.New(state.started)}, {State: state.state, Msg: state.message, Ts: timestamppb.New(state.started)},
			}},
			Health: &machine.ServiceHealth{Unknown: !state.known, Healthy: state.healthy, LastMessage: state.message},
		})
	}
	return &machine.ServiceListResponse{Messages: []*machine.ServiceList{list}}, nil
}

// etcdFiles are what etcd makes in its data directory.
func etcdFiles() []string {
	return []string{"member", "member/snap", "member/snap/db", "member/wal"}
}

// List lists the data directory of etcd, and the directories in it. Everything
// else is absent.
func (a *api) List(req *machine.ListRequest, stream grpc.ServerStreamingServer[machine.FileInfo]) error {
	files := []string{""}
	if a.boot.machine.HasEtcdData() {
		files = append(files, etcdFiles()...)
	}
	root := path.Clean("/" + req.GetRoot())
	below, isEtcd := strings.CutPrefix(root, constants.EtcdDataPath)
	below = strings.TrimPrefix(below, "/")
	var made bool
	a.boot.sim.look(func() {
		// Etcd's service makes it when it starts, and leaving removes it.
		made = a.boot.machine.disk.ephemeral && a.settings != nil && a.settings.controlPlane && (a.boot.machine.etcd != etcdFinished || a.boot.machine.hasData())
	})
	if !isEtcd || !made || !slices.Contains(files, below) {
		return fmt.Errorf("lstat %s: no such file or directory", root)
	}
	for _, file := range files {
		relative, inside := strings.CutPrefix("/"+file, "/"+below)
		relative = strings.TrimPrefix(relative, "/")
		if !inside || !req.GetRecurse() && strings.Contains(relative, "/") {
			continue
		}
		info := &machine.FileInfo{Name: path.Join(root, relative), RelativeName: relative, IsDir: !strings.HasSuffix(file, "/db")}
		if relative == "" {
			info.RelativeName = "."
		}
		if err := stream.Send(info); err != nil {
			return err
		}
	}
	return nil
}
