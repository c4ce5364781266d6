package audit

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
)

// Request is what a manager has asked for, without how often.
type Request struct {
	// Manager is the provider of the manager.
	Manager string
	// Namespace, Group, Resource and Name are what it was about; a resource has its
	// subresource behind a slash.
	Namespace, Group, Resource, Name string
	// Verb is what was to be done.
	Verb string
}

// Requests are what managers have asked for.
type Requests struct {
	// Allowed counts what was not refused.
	Allowed map[Request]int
	// Refused are the answers to what was.
	Refused map[Request]string
}

// maxEvent bounds one line of the log. Events carry no objects.
const maxEvent = 1 << 20

// ReadLogs reads audit logs: an event of audit.k8s.io/v1 per line.
func ReadLogs(managers map[string]string, logs ...io.Reader) (Requests, error) {
	requests := Requests{Allowed: map[Request]int{}, Refused: map[Request]string{}}
	for _, log := range logs {
		scanner := bufio.NewScanner(log)
		scanner.Buffer(nil, maxEvent)
		for scanner.Scan() {
			if len(scanner.Bytes()) == 0 {
				continue
			}
			event := &auditv1.Event{}
			if err := json.Unmarshal(scanner.Bytes(), event); err != nil {
				return Requests{}, fmt.Errorf("reading an event of the audit log: %w", err)
			}
			requests.take(managers, event)
		}
		if err := scanner.Err(); err != nil {
			return Requests{}, fmt.Errorf("reading the audit log: %w", err)
		}
	}
	return requests, nil
}

// take counts an event. Requests that last, such as a watch, have two: one when the
// answer begins, so that those count that never end.
func (r *Requests) take(managers map[string]string, event *auditv1.Event) {
	manager, ours := managers[event.User.Username]
	if !ours || event.ObjectRef == nil || event.Stage == auditv1.StageRequestReceived {
		return
	}
	request := Request{
		Manager: manager, Namespace: event.ObjectRef.Namespace, Group: event.ObjectRef.APIGroup, Resource: event.ObjectRef.Resource,
		Name: event.ObjectRef.Name, Verb: event.Verb,
	}
	if event.ObjectRef.Subresource != "" {
		request.Resource += "/" + event.ObjectRef.Subresource
	}
	if refused(event.ResponseStatus) {
		r.Refused[request] = event.ResponseStatus.Message
		return
	}
	r.Allowed[request]++
}

// refused tells whether an answer says "forbidden". In a namespace that is being
// deleted nobody may create anything, whatever his rights.
func refused(status *metav1.Status) bool {
	if status == nil || status.Code != http.StatusForbidden {
		return false
	}
	return status.Details == nil || !slices.ContainsFunc(status.Details.Causes, func(cause metav1.StatusCause) bool {
		return cause.Type == corev1.NamespaceTerminatingCause
	})
}

// Uses tells whether a request needs a grant.
func (g Grant) Uses(request Request) bool {
	return g.Manager == request.Manager &&
		(g.Namespace == "" || g.Namespace == request.Namespace) &&
		(g.Group == "*" || g.Group == request.Group) &&
		covers(g.Resource, request.Resource) &&
		(g.Name == "" || g.Name == request.Name) &&
		(g.Verb == "*" || g.Verb == request.Verb)
}

// covers follows the rules of RBAC: "*" is every resource and subresource, "*/x" is
// subresource x of every one.
func covers(granted, asked string) bool {
	if subresource, all := strings.CutPrefix(granted, "*/"); all {
		_, found, _ := strings.Cut(asked, "/")
		return found == subresource
	}
	return granted == "*" || granted == asked
}
