// Package release decides what is done to the release of an add-on in a cluster. It judges
// what was found, names the next action, and judges again after it. It knows Helm by its
// verbs only.
package release

import (
	"context"
	"errors"
	"net"
	"net/url"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonv1 "github.com/capi-talos/capi-talos/addons/api/v1alpha1"
)

const (
	// FieldOwner is who writes objects of workload clusters beside Helm.
	FieldOwner = client.FieldOwner("capi-talos-addons")

	// ManagedByLabel is the label with which Helm marks the objects of releases
	// (helm.sh/helm/v3/pkg/action/validate.go).
	ManagedByLabel = "app.kubernetes.io/managed-by"
	// ManagedByHelm is the value of ManagedByLabel.
	ManagedByHelm = "Helm"
	// NameAnnotation is the name of the release of an object.
	NameAnnotation = "meta.helm.sh/release-name"
	// NamespaceAnnotation is the namespace of the release of an object.
	NamespaceAnnotation = "meta.helm.sh/release-namespace"
)

// Status is how far a revision is.
type Status string

// What a revision can be.
const (
	// Deployed is the revision that the cluster has.
	Deployed Status = "Deployed"
	// Superseded is a revision that was deployed once.
	Superseded Status = "Superseded"
	// Failed is a revision whose action has failed.
	Failed Status = "Failed"
	// Pending is a revision whose action is under way, or has ended without saying so.
	Pending Status = "Pending"
	// Uninstalling is a revision whose uninstallation was begun.
	Uninstalling Status = "Uninstalling"
	// Uninstalled is a revision that is kept for its history.
	Uninstalled Status = "Uninstalled"
)

// TestResult is how the test hooks of a revision have ended.
type TestResult string

// How tests can end. The zero value is that none were run.
const (
	TestsPassed TestResult = "Passed"
	TestsFailed TestResult = "Failed"
)

// Revision is one revision of a release.
type Revision struct {
	Number int32
	Status Status
	// Owner and Digest are what Labels say; empty in a revision that no add-on has made.
	Owner, Digest string
	// Chart and Version are those of the chart.
	Chart, Version string
	// At is when its action began, and Timeout how long that was allowed to take; 0 when
	// it does not say.
	At      time.Time
	Timeout time.Duration
	// Tests is how its tests have ended.
	Tests TestResult
}

// Target is a release in a workload cluster.
type Target struct {
	Namespace, Name string
}

// Request is what an installation or upgrade is asked to make.
type Request struct {
	Target

	// Owner and Digest are recorded with the revision.
	Owner, Digest string
	// Chart is the archive of the chart.
	Chart []byte
	// Values are those of the user. They are not changed.
	Values map[string]any
	// Options say how.
	Options Options
	// DryRun has nothing written.
	DryRun bool
}

// Options say how actions are carried out.
type Options struct {
	CreateNamespace bool
	CRDs            addonv1.CRDPolicy
	Wait            addonv1.WaitPolicy
	Timeout         time.Duration
	HistoryLimit    int
}

// Content is a revision with the objects that it consists of, but for hooks.
type Content struct {
	Target
	Revision

	Objects []*unstructured.Unstructured
}

// Helm acts on the releases of one workload cluster. An error that wraps ErrUnreachable
// says that the API server did not answer, and that nothing is known of what was asked for;
// one that wraps a *RefusedError that the same is refused again. Calls end with their
// context where Helm lets them.
type Helm interface {
	// Get returns the newest revision of a release with its objects, and ErrNotFound when
	// there is none.
	Get(ctx context.Context, target Target) (Content, error)
	// History returns the revisions of a release, the newest first; none when there is no
	// such release.
	History(ctx context.Context, target Target) ([]Revision, error)
	// Install makes the first revision. With DryRun it returns what it would be.
	Install(ctx context.Context, request Request) (Content, error)
	// Upgrade makes another revision. With DryRun it returns what it would be.
	Upgrade(ctx context.Context, request Request) (Content, error)
	// Unlock marks a pending revision as failed, so that another one can be made.
	Unlock(ctx context.Context, target Target, revision int32) error
	// Rollback makes another revision that is like a former one.
	Rollback(ctx context.Context, target Target, revision int32, options Options) error
	// Uninstall deletes the objects of a release and its history. There is no error when
	// it is gone.
	Uninstall(ctx context.Context, target Target, options Options) error
	// Test runs the test hooks of the newest revision.
	Test(ctx context.Context, target Target, options Options) error
}

// ErrNotFound says that there is no such release.
var ErrNotFound = errors.New("there is no such release")

// ErrUnreachable says that the API server of a cluster did not answer.
var ErrUnreachable = errors.New("the API server of the cluster does not answer")

// IsUnanswered reports whether an error is one of the way to an API server, and not its
// answer.
func IsUnanswered(err error) bool {
	network, request := (net.Error)(nil), (*url.Error)(nil)

	return errors.As(err, &network) || errors.As(err, &request) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
}

// RefusedError says that what was asked for is refused before anything is done, and will
// be again.
type RefusedError struct {
	// Reason is that of condition Released.
	Reason string
	// Message says why, without values.
	Message string
}

// Error implements error.
func (e *RefusedError) Error() string { return e.Message }

// Redact is an error whose message a function has changed, so that no values are in it. It
// is still ErrUnreachable or a *RefusedError when it was.
func Redact(err error, change func(string) string) error {
	if err == nil {
		return nil
	}
	message := change(err.Error())
	if refused := (*RefusedError)(nil); errors.As(err, &refused) {
		return &RefusedError{Reason: refused.Reason, Message: message}
	}
	if errors.Is(err, ErrUnreachable) {
		return &unreachableError{message}
	}

	return errors.New(message)
}

// unreachableError is ErrUnreachable with a message that begins with it, or with what was
// left of that.
type unreachableError struct{ message string }

// Error implements error.
func (e *unreachableError) Error() string { return e.message }

// Unwrap makes it ErrUnreachable.
func (e *unreachableError) Unwrap() error { return ErrUnreachable }
