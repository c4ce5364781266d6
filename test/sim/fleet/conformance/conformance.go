// Package conformance compares what talossim answers with what a real Talos node
// does: every call of machined's rule map and every resource that our providers
// read, each as every role. The answers of a real node are kept in testdata;
// where talossim answers otherwise, talossim is wrong.
package conformance

import (
	"context"
	"crypto/tls"
	"embed"
	"fmt"
	"maps"
	"net"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
	"sigs.k8s.io/yaml"
)

// TalosVersion is the release whose answers are kept.
const TalosVersion = "v1.13.9"

// apiPort is where the Talos API listens.
const apiPort = "50000"

// CallTimeout is how long a call of a real node may take. A stream that is open
// then counts as one that was accepted, and Talos waits that long for an etcd
// that does not run.
const CallTimeout = 5 * time.Second

// Maintenance is the caller without a certificate, of a node in maintenance
// mode. The others are roles of certificates.
const Maintenance = "maintenance"

// Record is what a node answers: by row, then by caller. In a row that a scenario
// does, steps take the place of callers.
type Record struct {
	// Talos is the release of the node, and Personality what kind it is.
	Talos       string `json:"talos"`
	Personality string `json:"personality"`
	// Answers are those of the rows.
	Answers map[string]map[string]string `json:"answers,omitempty"`
	// Scenarios are what was seen in their steps.
	Scenarios map[string][]string `json:"scenarios,omitempty"`
}

// Target is a node to ask.
type Target struct {
	// Address is its IP address.
	Address string
	// Certificates are the callers and what they present; nil is nothing.
	Certificates map[string]*tls.Certificate
	// Timeout is how long a call may take.
	Timeout time.Duration
}

// Ask asks a node all rows that are for it: those for maintenance mode if the
// caller of that name is among its certificates, else the others.
func Ask(ctx context.Context, target Target) (map[string]map[string]string, error) {
	answers := map[string]map[string]string{}
	for _, caller := range slices.Sorted(maps.Keys(target.Certificates)) {
		conn, err := dial(target, caller)
		if err != nil {
			return nil, err
		}
		for _, row := range Rows() {
			answer := row.ask(ctx, conn, target.Timeout)
			if answers[row.Name()] == nil {
				answers[row.Name()] = map[string]string{}
			}
			answers[row.Name()][caller] = answer.text()
		}
		if err := conn.Close(); err != nil {
			return nil, fmt.Errorf("closing the connection to %s: %w", target.Address, err)
		}
	}
	return answers, nil
}

func dial(target Target, caller string) (*grpc.ClientConn, error) {
	settings := &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: true} //nolint:gosec // G402: what the server answers is compared, nothing is entrusted to it.
	if certificate := target.Certificates[caller]; certificate != nil {
		settings.Certificates = []tls.Certificate{*certificate}
	}
	conn, err := grpc.NewClient(net.JoinHostPort(target.Address, apiPort), grpc.WithTransportCredentials(credentials.NewTLS(settings)))
	if err != nil {
		return nil, fmt.Errorf("connecting to %s: %w", target.Address, err)
	}
	return conn, nil
}

// answer is what came back.
type answer struct {
	err error
	// kind tells something of what was returned.
	kind string
}

// text is the code, and the class of the message.
func (a answer) text() string {
	if a.err == nil {
		return strings.TrimSpace("OK " + a.kind)
	}
	return Class(a.err)
}

// hidden are the parts of messages that differ from run to run.
var hidden = []struct { //nolint:gochecknoglobals // A constant.
	pattern *regexp.Regexp
	instead string
}{
	{regexp.MustCompile(`\b\d{1,3}(\.\d{1,3}){3}(:\d+)?(/\d+)?`), "<address>"},
	{regexp.MustCompile(`\[::1\](:\d+)?`), "<address>"},
	{regexp.MustCompile(`\b[0-9a-f]{12,}\b`), "<id>"},
	{regexp.MustCompile(`\b\d{4,}\b`), "<number>"},
	{regexp.MustCompile(`\s+`), " "},
	// Talossim links a newer machinery, with another reader of YAML and one rule
	// of validation less.
	{regexp.MustCompile(`decode error: .*`), "decode error: <where>"},
	{regexp.MustCompile(`\d+ errors? occurred: .*`), "<what is invalid>"},
}

// maxClass is how much of a message is compared.
const maxClass = 160

// Class is the code of an error, and its message less what differs from run to
// run.
func Class(err error) string {
	state, _ := status.FromError(err)
	message := state.Message()
	for _, part := range hidden {
		message = part.pattern.ReplaceAllString(message, part.instead)
	}
	message = strings.TrimSpace(message)
	if len(message) > maxClass {
		message = message[:maxClass]
	}
	switch state.Code() {
	case codes.OK:
		return "OK"
	case codes.DeadlineExceeded:
		// Who of the two noticed it is a matter of chance.
		return state.Code().String()
	default:
		return strings.TrimSpace(state.Code().String() + ": " + message)
	}
}

//go:embed testdata
var kept embed.FS

// Kept is the record of a real node of a personality.
func Kept(personality string) (Record, error) {
	content, err := kept.ReadFile("testdata/" + file(personality))
	if err != nil {
		return Record{}, fmt.Errorf("reading the kept record: %w", err)
	}
	return parse(content)
}

// file holds the record of a personality.
func file(personality string) string { return TalosVersion + "-" + personality + ".yaml" }

func parse(content []byte) (Record, error) {
	var record Record
	if err := yaml.UnmarshalStrict(content, &record); err != nil {
		return Record{}, fmt.Errorf("reading a record: %w", err)
	}
	return record, nil
}

// Write writes a record into a folder, under the name that Kept reads.
func (r Record) Write(dir string) error {
	content, err := yaml.Marshal(r)
	if err != nil {
		return fmt.Errorf("encoding a record: %w", err)
	}
	const permissions = 0o644
	if err := os.WriteFile(dir+"/"+file(r.Personality), content, permissions); err != nil {
		return fmt.Errorf("writing a record: %w", err)
	}
	return nil
}

// Rows counts the answers.
func (r Record) Rows() int {
	count := 0
	for _, callers := range r.Answers {
		count += len(callers)
	}
	for _, steps := range r.Scenarios {
		count += len(steps)
	}
	return count
}

// Differences compares what a node answers with what was kept, a line each. What
// is in neither is not looked at.
func Differences(got, want Record) []string {
	var lines []string
	for _, row := range sortedKeys(got.Answers, want.Answers) {
		for _, caller := range sortedKeys(got.Answers[row], want.Answers[row]) {
			if g, w := got.Answers[row][caller], want.Answers[row][caller]; g != w {
				lines = append(lines, fmt.Sprintf("%s as %s: got %q, kept %q", row, caller, g, w))
			}
		}
	}
	for _, scenario := range sortedKeys(got.Scenarios, want.Scenarios) {
		g, w := got.Scenarios[scenario], want.Scenarios[scenario]
		for i := range max(len(g), len(w)) {
			if at(g, i) != at(w, i) {
				lines = append(lines, fmt.Sprintf("scenario %s, step %d: got %q, kept %q", scenario, i+1, at(g, i), at(w, i)))
			}
		}
	}
	return lines
}

func at(steps []string, i int) string {
	if i < len(steps) {
		return steps[i]
	}
	return ""
}

func sortedKeys[V any](one, other map[string]V) []string {
	keys := slices.Concat(slices.Collect(maps.Keys(one)), slices.Collect(maps.Keys(other)))
	slices.Sort(keys)
	return slices.Compact(keys)
}
