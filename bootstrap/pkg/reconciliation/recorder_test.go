package reconciliation

import (
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/events"
)

// TestALongNoteIsAnEvent: conditions may say more than an event can, and several
// Machines have much that can be wrong.
func TestALongNoteIsAnEvent(t *testing.T) {
	for _, tc := range []struct {
		name, note, recorded string
	}{
		{name: "a note", note: "waits", recorded: "waits"},
		{name: "one that is just short enough", note: strings.Repeat("a", 1024), recorded: strings.Repeat("a", 1024)},
		{name: "one that is too long", note: strings.Repeat("a", 1025), recorded: strings.Repeat("a", 1021) + "..."},
		{name: "one that would be cut within a letter", note: strings.Repeat("ä", 1000), recorded: strings.Repeat("ä", 510) + "..."},
		{name: "one that looks like a format", note: "100%d", recorded: "100%d"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			g := NewWithT(t)
			fake := events.NewFakeRecorder(1)

			cutting{fake}.Eventf(&corev1.Pod{}, nil, corev1.EventTypeNormal, "Reason", "Act", "%s", tc.note)

			g.Expect(fake.Events).To(Receive(Equal("Normal Reason " + tc.recorded)))
		})
	}
}
