package reconciliation

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
)

// maxNote is how much the API server takes of the note of an event, in bytes
// (events.k8s.io/v1); an event with a longer note it refuses.
const maxNote = 1024

const ellipsis = "..."

// NewEventRecorder is the recorder of a controller. Notes that are too long for the API server are
// cut; the whole is in the conditions of the object.
func NewEventRecorder(mgr ctrl.Manager, controller string) events.EventRecorder {
	return cutting{mgr.GetEventRecorder(controller)}
}

type cutting struct {
	events.EventRecorder
}

// Eventf records an event.
func (c cutting) Eventf(regarding, related runtime.Object, eventType, reason, action, note string, args ...any) {
	said := fmt.Sprintf(note, args...)
	if len(said) > maxNote {
		said = strings.ToValidUTF8(said[:maxNote-len(ellipsis)], "") + ellipsis
	}
	c.EventRecorder.Eventf(regarding, related, eventType, reason, action, "%s", said)
}
