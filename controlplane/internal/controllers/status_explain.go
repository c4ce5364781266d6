package controllers

import (
	"errors"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/objects"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
	"github.com/capi-talos/capi-talos/controlplane/internal/health"
	"github.com/capi-talos/capi-talos/controlplane/internal/naming"
	"github.com/capi-talos/capi-talos/controlplane/internal/plan"
)

// progress says what is done, or waited for, and why it failed; why nothing was decided,
// when the facts could not be gathered; empty when nothing is to be done. That somebody
// was faster is no failure: the next reconcile begins with what is there then.
func progress(s *scope) string {
	switch {
	case s.decision.Action == plan.Stable:
		return ""
	case s.decision.Action == "" && s.gatherErr != nil && !objects.IsLostRace(s.gatherErr):
		return "The state of the control plane could not be read: " + explain(s.gatherErr)
	default:
		return outcome(s.decision, s.effectErr)
	}
}

// outcome is the message of a decision, and why it could not be carried out.
func outcome(decision plan.Decision, effectErr error) string {
	if objects.IsLostRace(effectErr) {
		return decision.Message
	}
	if explained := explain(effectErr); explained != "" {
		return decision.Message + "; it failed: " + explained
	}

	return decision.Message
}

// standstill is the progress when there is none before a person has acted, or an error has
// gone; empty else.
func standstill(s *scope) string {
	if message := progress(s); message != s.decision.Message || s.decision.WaitsForPerson() {
		return message
	}

	return ""
}

// causeError is an error that a person can mend, in words that stay the same from reconcile
// to reconcile.
type causeError struct{ error }

// Unwrap returns the error inside.
func (e causeError) Unwrap() error { return e.error }

// explain says why a step failed, if the words stay the same from reconcile to
// reconcile: a cause that is known, a refusal of the management cluster, or of a node to
// bootstrap etcd. All else is in the log.
func explain(err error) string {
	var (
		joined interface{ Unwrap() []error }
		unfit  *naming.UnfitError
		cause  causeError
	)
	switch {
	case err == nil:
		return ""
	case errors.Is(err, talosclient.ErrClock):
		return health.WrongClockText
	case errors.As(err, &unfit):
		return "spec.machineNaming.template " + unfit.Error()
	case errors.As(err, &cause):
		return objects.Words(cause)
	case errors.As(err, &joined):
		var explained []string
		for _, one := range joined.Unwrap() {
			if words := explain(one); !slices.Contains(explained, words) {
				explained = append(explained, words)
			}
		}
		return strings.Join(explained, "; ")
	case errors.Is(err, talosclient.ErrBootstrapRefused):
		_, words, _ := strings.Cut(err.Error(), talosclient.ErrBootstrapRefused.Error())
		return talosclient.ErrBootstrapRefused.Error() + words
	case apierrors.IsConflict(err):
		return "somebody has changed an object meanwhile"
	case objects.IsNotTaken(err), apierrors.IsNotFound(err):
		return objects.Says + objects.Words(err)
	default:
		return "it is tried again, see the log of the manager"
	}
}
