package helm

import (
	"errors"
	"fmt"
	"regexp"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	addonv1 "github.com/capi-talos/capi-talos/addons/api/v1alpha1"
	"github.com/capi-talos/capi-talos/addons/internal/release"
)

// belongsToOthers is how Helm refuses to touch an object that is not of the release
// (pkg/action/validate.go).
var belongsToOthers = regexp.MustCompile(`(\S+) "([^"]+)" in namespace "([^"]*)" exists and cannot be imported into the current release`)

// refusals are the words with which Helm refuses before it has done anything, and what
// they mean (pkg/chartutil/jsonschema.go, pkg/action/action.go, pkg/engine/engine.go).
var refusals = []struct {
	words  *regexp.Regexp
	reason string
}{
	{regexp.MustCompile(`values don't meet the specifications of the schema`), addonv1.ValuesInvalidReason},
	{regexp.MustCompile(`chart requires kubeVersion`), addonv1.ChartInvalidReason},
	{regexp.MustCompile(`execution error at|error calling|parse error at|YAML parse error on`), addonv1.ValuesInvalidReason},
}

// classify tells errors apart: whether the API server does not answer, whether the same is
// refused again, or neither.
func classify(err error) error {
	if refused := (*release.RefusedError)(nil); errors.As(err, &refused) {
		return err
	}
	if isUnreachable(err) {
		return fmt.Errorf("%w: %w", release.ErrUnreachable, err)
	}
	if found := belongsToOthers.FindStringSubmatch(err.Error()); found != nil {
		reason := addonv1.ReleaseConflictReason
		if found[1] == "CustomResourceDefinition" {
			reason = addonv1.CRDConflictReason
		}
		return &release.RefusedError{Reason: reason, Message: fmt.Sprintf(
			"%s %s is in the cluster and belongs to another release or to none; remove it there, or have the chart leave it out", found[1], found[2])}
	}
	for _, refusal := range refusals {
		if refusal.words.MatchString(err.Error()) {
			return &release.RefusedError{Reason: refusal.reason, Message: err.Error()}
		}
	}

	return err
}

// isUnreachable reports whether an error is one of the way to the API server, or one that
// the API server gives while it cannot work.
func isUnreachable(err error) bool {
	return release.IsUnanswered(err) ||
		apierrors.IsServerTimeout(err) || apierrors.IsTimeout(err) || apierrors.IsServiceUnavailable(err) ||
		apierrors.IsTooManyRequests(err) || apierrors.IsInternalError(err) || apierrors.IsUnauthorized(err)
}
