package talossim

import (
	"context"
	"fmt"
	"slices"
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

// errNotAuthorized is how Talos refuses a caller.
var errNotAuthorized = status.Error(codes.PermissionDenied, "not authorized") //nolint:gochecknoglobals // A constant.

// authorizer decides who may call what.
type authorizer struct {
	machine *Machine
	// maintenance makes everybody a reader, whatever they present
	// (internal/app/apid/service.go: ReadonlyRoleMode).
	maintenance bool
	rules       map[string]role.Set
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
	allowed, listed := a.rules[method]
	if !listed {
		allowed = role.MakeSet(role.Admin)
	}
	if method == "/storage.StorageService/BlockDeviceWipe" && !a.maintenance {
		allowed = role.MakeSet(role.Admin)
	}
	if !a.rolesOf(ctx).IncludesAny(allowed) {
		return errNotAuthorized
	}
	return nil
}

// lacking answers the calls of services that are not simulated, once the caller
// is authorized.
func lacking(_ any, stream grpc.ServerStream) error {
	method, _ := grpc.MethodFromServerStream(stream)
	return status.Errorf(codes.Unimplemented, "%s is not simulated", method)
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
	case !slices.Contains(namespaces(), access.ResourceNamespace):
		return status.Error(codes.PermissionDenied, fmt.Sprintf("namespace %q is not supported", access.ResourceNamespace))
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
	a.machine.calls.count(info.FullMethod)
	a.delay(ctx)
	if err := a.check(ctx, info.FullMethod); err != nil {
		return nil, err
	}
	return handler(ctx, req)
}

func (a *authorizer) stream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	a.machine.calls.count(info.FullMethod)
	a.delay(stream.Context())
	if err := a.check(stream.Context(), info.FullMethod); err != nil {
		return err
	}
	return handler(srv, stream)
}
