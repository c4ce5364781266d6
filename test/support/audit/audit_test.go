package audit

import (
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
)

func TestRequestsAreReadFromALog(t *testing.T) {
	g := NewWithT(t)
	requests, err := Read(strings.NewReader(
		`{"stage":"ResponseComplete","verb":"patch","requestURI":"/x","userAgent":"a","requestReceivedTimestamp":"2026-01-02T03:04:05.600000Z","user":{"username":"u"},"objectRef":{"resource":"machines","subresource":"status","namespace":"ns","name":"m"}}
{"stage":"ResponseStarted","verb":"watch","user":{"username":"w"},"objectRef":{"resource":"machines"}}
{"stage":"ResponseComplete","verb":"watch","user":{"username":"w"},"objectRef":{"resource":"machines"}}
{"stage":"ResponseStarted","verb":"get","user":{"username":"v"}}
{"stage":"ResponseComplete","verb":"get","requestURI":"/apis","user":{"username":"v"}}
{"stage":"ResponseComplete","verb":"li`))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(requests).To(Equal([]Request{
		{User: "u", Agent: "a", Verb: "patch", Resource: "machines/status", Name: "ns/m", At: time.Date(2026, 1, 2, 3, 4, 5, 600e6, time.UTC)},
		{User: "w", Verb: "watch", Resource: "machines"},
		{User: "v", Verb: "get", Resource: "/apis"},
	}))
	g.Expect(requests[0].Writes()).To(BeTrue())
	g.Expect(requests[1].Writes()).To(BeFalse())
	_, err = Read(strings.NewReader("no event\n"))
	g.Expect(err).To(HaveOccurred())
}
