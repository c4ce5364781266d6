package world

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"time"
)

// Request is what somebody has asked the API server for.
type Request struct {
	// User is who, by the name of the API server.
	User string
	// Verb is get, list, watch, create, update, patch, delete or deletecollection.
	Verb string
	// Resource is the plural, with the subresource after a slash; a path where no
	// resource was asked for.
	Resource string
	// Name is that of the object, with its namespace; empty for lists.
	Name string
	// At is when the request came in.
	At time.Time
}

// Writes reports whether the request changes something.
func (r Request) Writes() bool { return r.Verb != "get" && r.Verb != "list" && r.Verb != "watch" }

// auditEvent is what is read of an event of audit.k8s.io/v1.
type auditEvent struct {
	Stage      string    `json:"stage"`
	Verb       string    `json:"verb"`
	RequestURI string    `json:"requestURI"`
	ReceivedAt time.Time `json:"requestReceivedTimestamp"`
	User       struct {
		Username string `json:"username"`
	} `json:"user"`
	ObjectRef *struct {
		Resource    string `json:"resource"`
		Subresource string `json:"subresource"`
		Namespace   string `json:"namespace"`
		Name        string `json:"name"`
	} `json:"objectRef"`
}

// ReadAudit reads the requests of an audit log. A last line without an end is
// still being written, and is left out.
func ReadAudit(log io.Reader) ([]Request, error) {
	var found []Request
	lines := bufio.NewReader(log)
	for {
		line, err := lines.ReadBytes('\n')
		if err == io.EOF {
			return found, nil
		}
		if err != nil {
			return nil, fmt.Errorf("reading the audit log: %w", err)
		}
		var event auditEvent
		if err := json.Unmarshal(line, &event); err != nil {
			return nil, fmt.Errorf("reading a line of the audit log: %w", err)
		}
		if event.Stage != "ResponseComplete" && event.Stage != "Panic" {
			continue
		}
		request := Request{User: event.User.Username, Verb: event.Verb, Resource: event.RequestURI, At: event.ReceivedAt}
		if ref := event.ObjectRef; ref != nil && ref.Resource != "" {
			request.Resource, request.Name = ref.Resource, ref.Name
			if ref.Subresource != "" {
				request.Resource += "/" + ref.Subresource
			}
			if ref.Namespace != "" && ref.Name != "" {
				request.Name = ref.Namespace + "/" + ref.Name
			}
		}
		found = append(found, request)
	}
}
