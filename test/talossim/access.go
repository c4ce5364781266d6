package talossim

import (
	"context"
	"fmt"
	"strings"

	"github.com/cosi-project/runtime/pkg/resource/meta"
	"github.com/cosi-project/runtime/pkg/resource/meta/spec"
	"github.com/cosi-project/runtime/pkg/state"
	"github.com/siderolabs/talos/pkg/machinery/role"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
)

// callers are the roles that may call a method.
type callers struct {
	roles   role.Set
	methods []string
}

// rules are machined's rule map as far as methods are served here
// (internal/app/machined/pkg/system/services/machined.go). What is not listed is
// for administrators.
func rules() []callers {
	const service = "/machine.MachineService/"
	return []callers{
		{role.MakeSet(role.Admin, role.Operator, role.Reader), []string{
			service + "Events", service + "Hostname", service + "List", service + "ServiceList", service + "Version",
			"/cosi.resource.State/Get", "/cosi.resource.State/List", "/cosi.resource.State/Watch",
		}},
		{role.MakeSet(role.Admin, role.Operator, role.Reader, role.EtcdBackup), []string{
			service + "EtcdAlarmList", service + "EtcdMemberList", service + "EtcdStatus",
		}},
		{role.MakeSet(role.Admin, role.Operator, role.EtcdBackup), []string{service + "EtcdSnapshot"}},
		{role.MakeSet(role.Admin, role.Operator), []string{
			service + "EtcdAlarmDisarm", service + "EtcdDefragment", service + "Reboot", service + "Shutdown", service + "ServiceRestart",
		}},
		// A reader may only in maintenance mode: the handler looks.
		{role.MakeSet(role.Admin, role.Reader), []string{service + "ApplyConfiguration"}},
	}
}

// errNotAuthorized is how Talos refuses a caller.
var errNotAuthorized = status.Error(codes.PermissionDenied, "not authorized") //nolint:gochecknoglobals // A constant.

// authorizer decides who may call what.
type authorizer struct {
	machine *Machine
	// maintenance makes everybody a reader, whatever they present
	// (internal/app/apid/service.go: ReadonlyRoleMode).
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
	allowed := role.MakeSet(role.Admin)
	for _, rule := range rules() {
		for _, listed := range rule.methods {
			if listed == method {
				allowed = rule.roles
			}
		}
	}
	if !a.rolesOf(ctx).IncludesAny(allowed) {
		return errNotAuthorized
	}
	return nil
}

// access is the rule for resources (internal/app/resources/access.go): nobody
// writes, and only an administrator reads what is sensitive.
func (a *authorizer) access(ctx context.Context, access state.Access) error {
	if !access.Verb.Readonly() {
		return status.Error(codes.PermissionDenied, "write access is not allowed")
	}
	sensitivity, known := sensitivityOf(access.ResourceType)
	switch {
	case !known:
		return status.Error(codes.PermissionDenied, fmt.Sprintf("resource type %q is not supported", access.ResourceType))
	case sensitivity == meta.Sensitive && !a.rolesOf(ctx).Includes(role.Admin):
		return errNotAuthorized
	}
	return nil
}

func sensitivityOf(kind string) (sensitivity spec.Sensitivity, known bool) {
	for _, candidate := range append(types(), &meta.ResourceDefinition{}, &meta.Namespace{}) {
		definition := candidate.ResourceDefinition()
		if strings.EqualFold(definition.Type, kind) {
			return definition.Sensitivity, true
		}
	}
	return "", false
}

// delay is the fault of a slow machine.
func (a *authorizer) delay(ctx context.Context) {
	a.machine.sim.pause(ctx, a.machine.Faults().Slow)
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
