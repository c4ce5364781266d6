package talossim

import (
	"context"
	"strings"

	"github.com/siderolabs/talos/pkg/machinery/role"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
)

// rules are the roles that may call, of machined's rule map
// (internal/app/machined/pkg/system/services/machined.go, Talos v1.13.9). What
// is not listed is for administrators.
var rules = map[string]role.Set{ //nolint:gochecknoglobals // A constant table.
	"/machine.MachineService/ApplyConfiguration": role.MakeSet(role.Admin, role.Reader),
	"/machine.MachineService/EtcdAlarmList":      role.MakeSet(role.Admin, role.Operator, role.Reader, role.EtcdBackup),
	"/machine.MachineService/EtcdMemberList":     role.MakeSet(role.Admin, role.Operator, role.Reader, role.EtcdBackup),
	"/machine.MachineService/EtcdStatus":         role.MakeSet(role.Admin, role.Operator, role.Reader, role.EtcdBackup),
	"/machine.MachineService/EtcdSnapshot":       role.MakeSet(role.Admin, role.Operator, role.EtcdBackup),
	"/machine.MachineService/Hostname":           role.MakeSet(role.Admin, role.Operator, role.Reader),
	"/machine.MachineService/List":               role.MakeSet(role.Admin, role.Operator, role.Reader),
	"/machine.MachineService/ServiceList":        role.MakeSet(role.Admin, role.Operator, role.Reader),
	"/machine.MachineService/Version":            role.MakeSet(role.Admin, role.Operator, role.Reader),
	"/cosi.resource.State/Get":                   role.MakeSet(role.Admin, role.Operator, role.Reader),
	"/cosi.resource.State/List":                  role.MakeSet(role.Admin, role.Operator, role.Reader),
	"/cosi.resource.State/Watch":                 role.MakeSet(role.Admin, role.Operator, role.Reader),
}

// authorizer decides who may call what. In maintenance mode everybody is a
// reader.
type authorizer struct {
	machine     *Machine
	maintenance bool
}

// rolesOf are the roles of a caller, out of its certificate.
func (a *authorizer) rolesOf(ctx context.Context) role.Set {
	if a.maintenance {
		return role.MakeSet(role.Reader)
	}
	caller, _ := peer.FromContext(ctx)
	if caller == nil {
		return role.Zero
	}
	info, ok := caller.AuthInfo.(credentials.TLSInfo)
	if !ok || len(info.State.PeerCertificates) == 0 {
		return role.Zero
	}
	roles, _ := role.Parse(info.State.PeerCertificates[0].Subject.Organization)
	return roles
}

func (a *authorizer) check(ctx context.Context, method string) error {
	allowed, listed := rules[method]
	if !listed {
		allowed = role.MakeSet(role.Admin)
	}
	if !a.rolesOf(ctx).IncludesAny(allowed) {
		return status.Error(codes.PermissionDenied, "not authorized")
	}
	if !a.maintenance && strings.HasSuffix(method, "/ApplyConfiguration") && !a.rolesOf(ctx).Includes(role.Admin) {
		return status.Error(codes.PermissionDenied, "not authorized")
	}
	return nil
}

// delay is the fault of a slow machine.
func (a *authorizer) delay(ctx context.Context) {
	a.machine.sim.mu.Lock()
	slow := a.machine.faults.Slow
	a.machine.sim.mu.Unlock()
	if slow > 0 {
		pause(ctx, slow)
	}
}

func (a *authorizer) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	a.delay(ctx)
	if err := a.check(ctx, info.FullMethod); err != nil {
		return nil, err
	}
	return handler(ctx, req)
}

func (a *authorizer) stream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	a.delay(stream.Context())
	if err := a.check(stream.Context(), info.FullMethod); err != nil {
		return err
	}
	return handler(srv, stream)
}
