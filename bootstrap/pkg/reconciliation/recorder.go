package reconciliation

import (
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/condition"
)

// maxNote is how much the API server takes of the note of an event, in bytes
// (events.k8s.io/v1); an event with a longer note it refuses.
const maxNote = 1024

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
	c.EventRecorder.Eventf(regarding, related, eventType, reason, action, "%s", condition.Cut(fmt.Sprintf(note, args...), maxNote))
}
