package audit

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

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

// ReadLogs reads audit logs: an event of audit.k8s.io/v1 per line. What came in
// before since is left out.
func ReadLogs(managers map[string]string, since time.Time, logs ...io.Reader) (Requests, error) {
	requests := Requests{Allowed: map[Request]int{}, Refused: map[Request]string{}}
	for _, log := range logs {
		if err := requests.read(managers, since, log); err != nil {
			return Requests{}, err
		}
	}
	return requests, nil
}

// read reads one log. A last line without an end is still being written, and is left
// out.
func (r *Requests) read(managers map[string]string, since time.Time, log io.Reader) error {
	lines := bufio.NewReader(log)
	for {
		line, err := lines.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("reading the audit log: %w", err)
		}
		if len(bytes.TrimSpace(line)) == 0 {
			continue
		}
		event := &auditv1.Event{}
		if err := json.Unmarshal(line, event); err != nil {
			return fmt.Errorf("reading an event of the audit log: %w", err)
		}
		if !event.RequestReceivedTimestamp.Time.Before(since) {
			r.take(managers, event)
		}
	}
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
	if refused(event) {
		r.Refused[request] = event.ResponseStatus.Message
		return
	}
	r.Allowed[request]++
	if event.Verb == "patch" && event.ResponseStatus != nil && event.ResponseStatus.Code == http.StatusCreated {
		// A server-side apply that makes an object needs the right to create it, too.
		request.Verb = "create"
		r.Allowed[request]++
	}
}

// decision is the annotation of events that says what came of RBAC, and allowed what
// it says of a right that there is.
const decision, allowed = "authorization.k8s.io/decision", "allow"

// ofOwners are the words of the admission that asks for rights of its own
// (OwnerReferencesPermissionEnforcement).
var ofOwners = []string{ //nolint:gochecknoglobals // a constant table
	"cannot set blockOwnerDeletion if an ownerReference refers to a resource you can't set finalizers on",
	"cannot set an ownerRef on a resource you can't delete",
}

// refused reports whether an answer says that a right is missing. A quota, Pod
// Security, a webhook and a namespace that is being deleted say "forbidden", too, to
// those who have the right.
func refused(event *auditv1.Event) bool {
	status := event.ResponseStatus
	if status == nil || status.Code != http.StatusForbidden {
		return false
	}
	return event.Annotations[decision] != allowed ||
		slices.ContainsFunc(ofOwners, func(words string) bool { return strings.Contains(status.Message, words) })
}

// Uses reports whether a request needs a grant.
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
