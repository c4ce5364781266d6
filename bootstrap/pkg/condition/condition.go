// Package condition carries what a reconcile has found to the end of it, where the
// conditions of an object are derived.
package condition

import (
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/cluster-api/util/conditions"
)

// Finding is the content of a condition. The zero value is none: nothing was observed.
type Finding struct {
	Status  metav1.ConditionStatus
	Reason  string
	Message string
}

// True is a finding of status True.
func True(reason, message string) Finding {
	return Finding{Status: metav1.ConditionTrue, Reason: reason, Message: message}
}

// False is a finding of status False.
func False(reason, message string) Finding {
	return Finding{Status: metav1.ConditionFalse, Reason: reason, Message: message}
}

// Falsef is a finding of status False with a formatted message.
func Falsef(reason, format string, args ...any) Finding {
	return False(reason, fmt.Sprintf(format, args...))
}

// Unknown is a finding of status Unknown.
func Unknown(reason, message string) Finding {
	return Finding{Status: metav1.ConditionUnknown, Reason: reason, Message: message}
}

// Unknownf is a finding of status Unknown with a formatted message.
func Unknownf(reason, format string, args ...any) Finding {
	return Unknown(reason, fmt.Sprintf(format, args...))
}

// maxMessage is how long the message of a condition may be, in bytes: an API server refuses
// a status with a longer one (metav1.Condition).
const maxMessage = 32768

// Cut returns a text of at most so many bytes. One that is longer ends with "...".
func Cut(text string, length int) string {
	const ellipsis = "..."
	if len(text) <= length {
		return text
	}

	return strings.ToValidUTF8(text[:length-len(ellipsis)], "") + ellipsis
}

// Set sets a condition of an object, or leaves it as it is when nothing was observed. The
// time of the last transition changes with the status only. A message is cut where it is too
// long.
func Set(object conditions.Setter, conditionType string, found Finding) {
	if found.Status == "" {
		return
	}
	found.Message = Cut(found.Message, maxMessage)
	conditions.Set(object, metav1.Condition{Type: conditionType, Status: found.Status, Reason: found.Reason, Message: found.Message})
}
