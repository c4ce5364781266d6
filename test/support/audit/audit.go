// Package audit has API servers write down who has asked them for what, and reads it.
package audit

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"
)

// policy has each request noted once it is answered, without its content, and a watch once
// it has begun. What the API server asks itself for is left out.
const policy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: None
  users: ["system:apiserver"]
- level: Metadata
`

// Flags writes the policy into a folder, and returns the flags with which a kube-apiserver
// appends an event of audit.k8s.io/v1 per line to a log.
func Flags(folder, log string) (map[string]string, error) {
	file := filepath.Join(folder, "policy.yaml")
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return nil, fmt.Errorf("making the folder of the audit policy: %w", err)
	}
	if err := os.WriteFile(file, []byte(policy), 0o644); err != nil {
		return nil, fmt.Errorf("writing the audit policy: %w", err)
	}

	return map[string]string{"audit-policy-file": file, "audit-log-path": log, "audit-log-mode": "blocking"}, nil
}

// Request is what somebody has asked the API server for.
type Request struct {
	// User is who, by the name of the API server, and Agent the program, as it says itself.
	User, Agent string
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

// event is what is read of an event of audit.k8s.io/v1.
type event struct {
	Stage      string    `json:"stage"`
	Verb       string    `json:"verb"`
	RequestURI string    `json:"requestURI"`
	UserAgent  string    `json:"userAgent"`
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

// counts reports whether the event is the one by which its request is counted.
func (e event) counts() bool {
	if e.Verb == "watch" {
		return e.Stage == "ResponseStarted"
	}

	return e.Stage == "ResponseComplete" || e.Stage == "Panic"
}

// Read reads the requests of a log. A last line without an end is still being written, and
// is left out.
func Read(log io.Reader) ([]Request, error) {
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
		var noted event
		if err := json.Unmarshal(line, &noted); err != nil {
			return nil, fmt.Errorf("reading a line of the audit log: %w", err)
		}
		if !noted.counts() {
			continue
		}
		request := Request{User: noted.User.Username, Agent: noted.UserAgent, Verb: noted.Verb, Resource: noted.RequestURI, At: noted.ReceivedAt}
		if ref := noted.ObjectRef; ref != nil && ref.Resource != "" {
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
