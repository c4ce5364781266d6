// Package helm carries out the verbs of package release with the Helm SDK. Nothing else
// of ours imports Helm.
package helm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"

	"helm.sh/helm/v3/pkg/action"
	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/kube"
	helmrelease "helm.sh/helm/v3/pkg/release"
	"helm.sh/helm/v3/pkg/storage"
	"helm.sh/helm/v3/pkg/storage/driver"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonv1 "github.com/capi-talos/capi-talos/addons/api/v1alpha1"
	"github.com/capi-talos/capi-talos/addons/internal/release"
	"github.com/capi-talos/capi-talos/addons/internal/values"
)

// keptLines is how many of the last lines that Helm logs are kept: some of its errors
// leave out their cause.
const keptLines = 5

// Client acts on the releases of one workload cluster. It implements release.Helm.
type Client struct {
	config *rest.Config
	live   client.Client
}

var _ release.Helm = &Client{}

// New returns a client for the cluster of a configuration. live reads and writes objects
// of the same cluster without a cache.
func New(config *rest.Config, live client.Client) *Client {
	return &Client{config: guardedConfig(config), live: live}
}

// lines are the last ones that Helm has logged.
type lines struct {
	mu   sync.Mutex
	last []string
}

func (l *lines) log(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last = append(l.last, fmt.Sprintf(format, args...))
	l.last = l.last[max(0, len(l.last)-keptLines):]
}

// configuration is that of one action. Nothing of it is shared with others: what Helm
// knows of the API of a cluster would be out of date with the next chart that brings
// kinds of its own.
func (c *Client) configuration(namespace string) (*action.Configuration, *lines, error) {
	logged := &lines{}
	getter, err := newGetter(c.config, namespace)
	if err != nil {
		return nil, nil, err
	}
	secrets, err := kubernetes.NewForConfig(c.config)
	if err != nil {
		return nil, nil, fmt.Errorf("preparing the storage of Helm: %w", err)
	}
	stored := driver.NewSecrets(boundedSecrets{secrets.CoreV1().Secrets(namespace)})
	stored.Log = logged.log
	releases := storage.Init(stored)
	releases.Log = logged.log
	objects := kube.New(getter)
	objects.Factory, objects.Log = withoutSchema{objects.Factory}, logged.log

	return &action.Configuration{
		RESTClientGetter: getter, KubeClient: objects, Releases: releases, Log: logged.log,
		HookOutputFunc: func(string, string, string) io.Writer { return io.Discard },
	}, logged, nil
}

// Get implements release.Helm.
func (c *Client) Get(_ context.Context, target release.Target) (release.Content, error) {
	config, _, err := c.configuration(target.Namespace)
	if err != nil {
		return release.Content{}, err
	}
	found, err := config.Releases.Last(target.Name)
	if errors.Is(err, driver.ErrReleaseNotFound) {
		return release.Content{}, release.ErrNotFound
	}
	if err != nil {
		return release.Content{}, classify(fmt.Errorf("reading the release: %w", err))
	}

	return contentOf(found)
}

// History implements release.Helm.
func (c *Client) History(_ context.Context, target release.Target) ([]release.Revision, error) {
	config, _, err := c.configuration(target.Namespace)
	if err != nil {
		return nil, err
	}
	found, err := config.Releases.History(target.Name)
	if errors.Is(err, driver.ErrReleaseNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, classify(fmt.Errorf("reading the history of the release: %w", err))
	}
	var history []release.Revision
	for _, revision := range found {
		history = append(history, revisionOf(revision))
	}
	slices.SortFunc(history, func(a, b release.Revision) int { return int(b.Number) - int(a.Number) })

	return history, nil
}

// Install implements release.Helm.
func (c *Client) Install(ctx context.Context, request release.Request) (release.Content, error) {
	config, loaded, err := c.prepare(ctx, request)
	if err != nil {
		return release.Content{}, err
	}
	install := action.NewInstall(config)
	install.ReleaseName, install.Namespace = request.Name, request.Namespace
	install.CreateNamespace = request.Options.CreateNamespace
	// There may be the history of a release that was uninstalled with helm uninstall --keep-history.
	install.Replace = true
	install.SkipCRDs, install.Labels = true, labelsOf(request)
	install.Timeout, install.Wait, install.WaitForJobs = request.Options.Timeout, waits(request.Options), waitsForJobs(request.Options)
	if request.DryRun {
		install.DryRun, install.DryRunOption = true, "server"
	}
	made, err := install.RunWithContext(ctx, loaded, clone(request.Values))
	if err != nil {
		return release.Content{}, classify(fmt.Errorf("installing: %w", err))
	}

	return contentOf(made)
}

// Upgrade implements release.Helm.
func (c *Client) Upgrade(ctx context.Context, request release.Request) (release.Content, error) {
	config, loaded, err := c.prepare(ctx, request)
	if err != nil {
		return release.Content{}, err
	}
	upgrade := action.NewUpgrade(config)
	upgrade.Namespace, upgrade.MaxHistory = request.Namespace, request.Options.HistoryLimit
	upgrade.SkipCRDs, upgrade.Labels = true, labelsOf(request)
	// The values are all that was asked for, and not what is left of earlier ones.
	upgrade.ResetValues = true
	upgrade.Timeout, upgrade.Wait, upgrade.WaitForJobs = request.Options.Timeout, waits(request.Options), waitsForJobs(request.Options)
	if request.DryRun {
		upgrade.DryRun, upgrade.DryRunOption = true, "server"
	}
	failed, err := failedSince(config, request.Name)
	if err != nil {
		return release.Content{}, classify(err)
	}
	made, err := upgrade.RunWithContext(ctx, request.Name, loaded, clone(request.Values))
	if err == nil && !request.DryRun {
		err = c.prune(ctx, config, request.Target, failed)
	}
	if err != nil {
		return release.Content{}, classify(fmt.Errorf("upgrading: %w", err))
	}

	return contentOf(made)
}

// prepare loads the chart of a request, and brings its CustomResourceDefinitions to the
// cluster: Helm would not, at an upgrade.
func (c *Client) prepare(ctx context.Context, request release.Request) (*action.Configuration, *chart.Chart, error) {
	loaded, err := load(request.Chart)
	if err != nil {
		return nil, nil, err
	}
	if !request.DryRun {
		if err := c.applyCRDs(ctx, loaded, request); err != nil {
			return nil, nil, classify(err)
		}
	}
	config, _, err := c.configuration(request.Namespace)

	return config, loaded, err
}

// Unlock implements release.Helm.
func (c *Client) Unlock(_ context.Context, target release.Target, revision int32) error {
	config, _, err := c.configuration(target.Namespace)
	if err != nil {
		return err
	}
	found, err := config.Releases.Get(target.Name, int(revision))
	if err == nil && found.Info.Status.IsPending() {
		found.SetStatus(helmrelease.StatusFailed, "The action has ended without a result")
		err = config.Releases.Update(found)
	}
	if err != nil {
		return classify(fmt.Errorf("unlocking revision %d: %w", revision, err))
	}

	return nil
}

// Rollback implements release.Helm.
func (c *Client) Rollback(ctx context.Context, target release.Target, revision int32, options release.Options) error {
	config, _, err := c.configuration(target.Namespace)
	if err != nil {
		return err
	}
	rollback := action.NewRollback(config)
	rollback.Version, rollback.MaxHistory = int(revision), options.HistoryLimit
	rollback.Timeout, rollback.Wait, rollback.WaitForJobs = options.Timeout, waits(options), waitsForJobs(options)
	failed, err := failedSince(config, target.Name)
	if err != nil {
		return classify(err)
	}
	hidden := hiddenOf(config, target.Name)
	err = rollback.Run(target.Name)
	if err != nil && lostByFailure.MatchString(err.Error()) {
		// It has made a failed revision, which has the objects of the former one.
		err = rollback.Run(target.Name)
	}
	if err == nil {
		err = c.prune(ctx, config, target, failed)
	}
	if err != nil {
		return release.Redact(classify(fmt.Errorf("rolling back to revision %d: %w", revision, err)), hidden.In)
	}

	return nil
}

// Uninstall implements release.Helm.
func (c *Client) Uninstall(_ context.Context, target release.Target, options release.Options) error {
	config, logged, err := c.configuration(target.Namespace)
	if err != nil {
		return err
	}
	uninstall := action.NewUninstall(config)
	uninstall.Timeout = options.Timeout
	uninstall.Wait = options.Wait != addonv1.WaitNone
	hidden := hiddenOf(config, target.Name)
	if _, err := uninstall.Run(target.Name); err != nil && !errors.Is(err, driver.ErrReleaseNotFound) {
		return release.Redact(classify(fmt.Errorf("uninstalling: %w (%q)", err, logged.last)), hidden.In)
	}

	return nil
}

// hiddenOf are the values of all revisions of a release: what is undone or removed was made
// of values that whoever asks for it does not know. A release that cannot be read has none
// to show.
func hiddenOf(config *action.Configuration, name string) *values.Hidden {
	hidden := &values.Hidden{}
	history, err := config.Releases.History(name)
	if err != nil {
		return hidden
	}
	for _, revision := range history {
		hidden.HideSecret(revision.Config)
	}

	return hidden
}

// Test implements release.Helm.
func (c *Client) Test(_ context.Context, target release.Target, options release.Options) error {
	config, _, err := c.configuration(target.Namespace)
	if err != nil {
		return err
	}
	test := action.NewReleaseTesting(config)
	test.Namespace, test.Timeout = target.Namespace, options.Timeout
	if _, err := test.Run(target.Name); err != nil {
		return classify(fmt.Errorf("testing: %w", err))
	}

	return nil
}

func waits(options release.Options) bool { return options.Wait != addonv1.WaitNone }

func waitsForJobs(options release.Options) bool {
	return options.Wait == addonv1.WaitResourcesAndJobs
}

// clone copies values: Helm changes those that it is given.
func clone(values map[string]any) map[string]any {
	copied := maps.Clone(values)
	for key, value := range copied {
		copied[key] = cloneValue(value)
	}
	if copied == nil {
		return map[string]any{}
	}

	return copied
}

func cloneValue(value any) any {
	switch value := value.(type) {
	case map[string]any:
		return clone(value)
	case []any:
		copied := make([]any, len(value))
		for i := range value {
			copied[i] = cloneValue(value[i])
		}
		return copied
	}

	return value
}

// requestTimeout is how long one request to the API server may take. That of a connection
// of the ClusterCache is shorter than what waits for Pods.
const requestTimeout = time.Minute

// guardedConfig is a configuration for Helm.
func guardedConfig(config *rest.Config) *rest.Config {
	copied := rest.CopyConfig(config)
	copied.Timeout = requestTimeout
	copied.Wrap(func(inner http.RoundTripper) http.RoundTripper { return guarded{inner} })

	return copied
}
