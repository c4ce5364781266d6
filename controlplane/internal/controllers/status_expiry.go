package controllers

import (
	"fmt"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/cluster-api/util/conditions"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/condition"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/objects"
	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
	"github.com/capi-talos/capi-talos/controlplane/internal/clientconfig"
)

// setExpiringCondition tells when the certificates of the cluster expire, and
// warns once of those that do so soon, or could not be renewed as a person wants.
func (r *Reconciler) setExpiringCondition(s *scope) {
	const conditionType = controlplanev1.CertificatesExpiringCondition
	before := conditions.Get(s.controlPlane, conditionType)
	if s.expiries == nil {
		if before == nil || s.decision.Action != "" {
			condition.Set(s.controlPlane, conditionType, condition.Unknown(controlplanev1.CertificatesExpiryUnknownReason,
				"The CAs of the cluster cannot be read; see condition "+controlplanev1.CertificatesAvailableCondition))
		}
		return
	}
	found := judgeExpiries(s.expiries, r.Clock.Now())
	isNew := func(said string) bool {
		return before == nil || !strings.Contains(before.Message, objects.WithoutWords(said))
	}
	for _, failure := range s.notRenewed {
		if isNew(failure) {
			r.event(s, warning, "RenewalFailed", "RenewCredentials", "%s", failure)
		}
	}
	if found.Status == metav1.ConditionTrue && (isNew(found.Message) || before.Reason != found.Reason) {
		r.event(s, warning, "Certificates"+found.Reason, "Observe", "%s", found.Message)
	}
	if len(s.notRenewed) > 0 {
		found.Message = bullets(s.notRenewed) + "\n" + found.Message
	}
	condition.Set(s.controlPlane, conditionType, found)
}

// judgeExpiries words the condition CertificatesExpiring. Its message has dates,
// which change only with the certificates.
func judgeExpiries(expiries []clientconfig.Expiry, now time.Time) condition.Finding {
	found := condition.False(controlplanev1.CertificatesNotExpiringReason, "")
	var urgent, other []string
	for _, expiry := range expiries {
		sentence := fmt.Sprintf("%s: %s", expiry.At.UTC().Format(time.RFC3339), expiry.Name)
		switch {
		case !now.Before(expiry.At):
			found = condition.True(controlplanev1.CertificatesExpiredReason, "")
			urgent = append(urgent, sentence+" has expired; "+expiry.Remedy)
		case !now.Before(expiry.At.Add(-expiry.Warning)):
			if found.Status == metav1.ConditionFalse {
				found = condition.True(controlplanev1.CertificatesExpiringReason, "")
			}
			urgent = append(urgent, sentence+" expires soon; "+expiry.Remedy)
		default:
			other = append(other, sentence+" expires")
		}
	}

	found.Message = bullets(append(urgent, other...))

	return found
}
