package setup

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	addonv1 "github.com/capi-talos/capi-talos/addons/api/v1alpha1"
	"github.com/capi-talos/capi-talos/addons/internal/release"
)

// counter counts by names.
type counter struct {
	mu    sync.Mutex
	found map[string]int
}

func (c *counter) add(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.found == nil {
		c.found = map[string]int{}
	}
	c.found[name]++
}

// counts are what was counted so far.
type counts map[string]int

func (c *counter) counts() counts {
	c.mu.Lock()
	defer c.mu.Unlock()

	return maps.Clone(c.found)
}

// since are the counts that have grown, by how much.
func (c counts) since(before counts) counts {
	grown := counts{}
	for name, count := range c {
		if count > before[name] {
			grown[name] = count - before[name]
		}
	}

	return grown
}

// of are the counts of the names that are wanted.
func (c counts) of(wanted func(name string) bool) counts {
	found := maps.Clone(c)
	maps.DeleteFunc(found, func(name string, _ int) bool { return !wanted(name) })

	return found
}

// String names the largest first.
func (c counts) String() string {
	names, total := slices.SortedFunc(maps.Keys(c), func(a, b string) int { return c[b] - c[a] }), 0
	var text []string
	for _, name := range names {
		total += c[name]
		text = append(text, fmt.Sprintf("%s %d", name, c[name]))
	}

	return fmt.Sprintf("%d (%s)", total, strings.Join(text, ", "))
}

// isWrite reports whether an API call changes something.
func isWrite(call string) bool {
	verb, _, _ := strings.Cut(call, " ")

	return !slices.Contains([]string{"get", "list", "watch"}, verb)
}

// transport counts the calls of an API server: "patch talosclusteraddons/status".
type transport struct {
	calls *counter
	inner http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (t transport) RoundTrip(r *http.Request) (*http.Response, error) {
	apis := request.RequestInfoFactory{APIPrefixes: sets.NewString("api", "apis"), GrouplessAPIPrefixes: sets.NewString("api")}
	info, err := apis.NewRequestInfo(r)
	if err != nil {
		return nil, fmt.Errorf("reading a request: %w", err)
	}
	name := info.Resource
	if info.Subresource != "" {
		name += "/" + info.Subresource
	}
	if !info.IsResourceRequest {
		name = "discovery"
	}
	t.calls.add(info.Verb + " " + name)

	return t.inner.RoundTrip(r)
}

// counted is a workload cluster whose verbs are counted.
type counted struct {
	release.Helm
	release.Objects

	verbs *counter
}

func (c counted) Get(ctx context.Context, target release.Target) (release.Content, error) {
	c.verbs.add("Get")

	return c.Helm.Get(ctx, target)
}

func (c counted) History(ctx context.Context, target release.Target) ([]release.Revision, error) {
	c.verbs.add("History")

	return c.Helm.History(ctx, target)
}

func (c counted) Install(ctx context.Context, request release.Request) (release.Content, error) {
	c.verbs.add("Install")

	return c.Helm.Install(ctx, request)
}

func (c counted) Upgrade(ctx context.Context, request release.Request) (release.Content, error) {
	c.verbs.add("Upgrade")

	return c.Helm.Upgrade(ctx, request)
}

func (c counted) Unlock(ctx context.Context, target release.Target, revision int32) error {
	c.verbs.add("Unlock")

	return c.Helm.Unlock(ctx, target, revision)
}

func (c counted) Rollback(ctx context.Context, target release.Target, revision int32, options release.Options) error {
	c.verbs.add("Rollback")

	return c.Helm.Rollback(ctx, target, revision, options)
}

func (c counted) Uninstall(ctx context.Context, target release.Target, options release.Options) error {
	c.verbs.add("Uninstall")

	return c.Helm.Uninstall(ctx, target, options)
}

func (c counted) Test(ctx context.Context, target release.Target, options release.Options) error {
	c.verbs.add("Test")

	return c.Helm.Test(ctx, target, options)
}

func (c counted) Drift(ctx context.Context, content release.Content) ([]addonv1.DriftedObject, error) {
	c.verbs.add("Drift")

	return c.Objects.Drift(ctx, content)
}

func (c counted) Correct(ctx context.Context, content release.Content, drifted []addonv1.DriftedObject) error {
	c.verbs.add("Correct")

	return c.Objects.Correct(ctx, content, drifted)
}

func (c counted) Waiting(ctx context.Context, content release.Content) (string, error) {
	c.verbs.add("Waiting")

	return c.Objects.Waiting(ctx, content)
}

// writesTo are the writes that an API server has had from anybody, as it says itself, but
// for the Leases with which API servers tell that they live.
func writesTo(ctx context.Context, config *rest.Config) (counts, error) {
	clients, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	text, err := clients.RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
	if err != nil {
		return nil, fmt.Errorf("reading the metrics of an API server: %w", err)
	}
	found := counts{}
	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
		labels, isRequests := strings.CutPrefix(lines.Text(), "apiserver_request_total{")
		if !isRequests {
			continue
		}
		verb, resource := label(labels, "verb"), label(labels, "resource")
		if slices.Contains([]string{"GET", "LIST", "WATCH", "CONNECT"}, verb) || resource == "leases" {
			continue
		}
		_, value, _ := strings.Cut(labels, "} ")
		number, err := strconv.ParseFloat(value, 64)
		if err != nil {
			return nil, fmt.Errorf("reading %q: %w", lines.Text(), err)
		}
		found[verb+" "+resource] += int(number)
	}

	return found, nil
}

func label(labels, name string) string {
	_, rest, _ := strings.Cut(labels, name+`="`)
	value, _, _ := strings.Cut(rest, `"`)

	return value
}
