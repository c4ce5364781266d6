package setup

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	addonv1 "github.com/capi-talos/capi-talos/addons/api/v1alpha1"
	"github.com/capi-talos/capi-talos/addons/internal/release"
	"github.com/capi-talos/capi-talos/test/support/tally"
)

// isWrite reports whether an API call changes something.
func isWrite(call string) bool {
	verb, _, _ := strings.Cut(call, " ")

	return !slices.Contains([]string{"get", "list", "watch"}, verb)
}

// transport counts the calls of an API server: "patch talosclusteraddons/status".
type transport struct {
	calls *tally.Counter
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
	t.calls.Add(info.Verb + " " + name)

	return t.inner.RoundTrip(r)
}

// counted is a workload cluster whose verbs are counted.
type counted struct {
	release.Helm
	release.Objects

	verbs *tally.Counter
}

func (c counted) Get(ctx context.Context, target release.Target) (release.Content, error) {
	c.verbs.Add("Get")

	return c.Helm.Get(ctx, target)
}

func (c counted) History(ctx context.Context, target release.Target) ([]release.Revision, error) {
	c.verbs.Add("History")

	return c.Helm.History(ctx, target)
}

func (c counted) Install(ctx context.Context, request release.Request) (release.Content, error) {
	c.verbs.Add("Install")

	return c.Helm.Install(ctx, request)
}

func (c counted) Upgrade(ctx context.Context, request release.Request) (release.Content, error) {
	c.verbs.Add("Upgrade")

	return c.Helm.Upgrade(ctx, request)
}

func (c counted) Unlock(ctx context.Context, target release.Target, revision int32) error {
	c.verbs.Add("Unlock")

	return c.Helm.Unlock(ctx, target, revision)
}

func (c counted) Rollback(ctx context.Context, target release.Target, revision int32, options release.Options) error {
	c.verbs.Add("Rollback")

	return c.Helm.Rollback(ctx, target, revision, options)
}

func (c counted) Uninstall(ctx context.Context, target release.Target, options release.Options) error {
	c.verbs.Add("Uninstall")

	return c.Helm.Uninstall(ctx, target, options)
}

func (c counted) Test(ctx context.Context, target release.Target, options release.Options) error {
	c.verbs.Add("Test")

	return c.Helm.Test(ctx, target, options)
}

func (c counted) Drift(ctx context.Context, content release.Content) ([]addonv1.DriftedObject, error) {
	c.verbs.Add("Drift")

	return c.Objects.Drift(ctx, content)
}

func (c counted) Correct(ctx context.Context, content release.Content, drifted []addonv1.DriftedObject) error {
	c.verbs.Add("Correct")

	return c.Objects.Correct(ctx, content, drifted)
}

func (c counted) Waiting(ctx context.Context, content release.Content) (string, error) {
	c.verbs.Add("Waiting")

	return c.Objects.Waiting(ctx, content)
}

// writesTo are the writes that an API server has had from anybody, as it says itself, but
// for the Leases with which API servers tell that they live.
func writesTo(ctx context.Context, config *rest.Config) (tally.Counts, error) {
	clients, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	text, err := clients.RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
	if err != nil {
		return nil, fmt.Errorf("reading the metrics of an API server: %w", err)
	}
	found := tally.Counts{}
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
