package helm

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"time"

	helmrelease "helm.sh/helm/v3/pkg/release"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"

	addonv1 "github.com/capi-talos/capi-talos/addons/api/v1alpha1"
	"github.com/capi-talos/capi-talos/addons/internal/release"
)

// timeoutLabel is how many seconds the action of a revision may take.
const timeoutLabel = "addons.cluster.x-k8s.io/timeout-seconds"

func labelsOf(request release.Request) map[string]string {
	return map[string]string{
		addonv1.OwnerLabel:  request.Owner,
		addonv1.DigestLabel: request.Digest,
		timeoutLabel:        strconv.Itoa(int(request.Options.Timeout / time.Second)),
	}
}

func revisionOf(found *helmrelease.Release) release.Revision {
	revision := release.Revision{
		Number: int32(found.Version), //nolint:gosec // G115: Helm counts from 1.
		Status: statusOf(found.Info.Status), At: found.Info.LastDeployed.Time,
		Owner: found.Labels[addonv1.OwnerLabel], Digest: found.Labels[addonv1.DigestLabel],
		Tests: testsOf(found.Hooks),
	}
	if found.Chart != nil && found.Chart.Metadata != nil {
		revision.Chart, revision.Version = found.Chart.Metadata.Name, found.Chart.Metadata.Version
	}
	if seconds, err := strconv.Atoi(found.Labels[timeoutLabel]); err == nil {
		revision.Timeout = time.Duration(seconds) * time.Second
	}

	return revision
}

// statusOf is what Helm calls a revision. What it does not know counts as failed: such a
// revision can be followed by another one.
func statusOf(status helmrelease.Status) release.Status {
	switch {
	case status == helmrelease.StatusDeployed:
		return release.Deployed
	case status == helmrelease.StatusSuperseded:
		return release.Superseded
	case status == helmrelease.StatusUninstalling:
		return release.Uninstalling
	case status == helmrelease.StatusUninstalled:
		return release.Uninstalled
	case status.IsPending():
		return release.Pending
	}

	return release.Failed
}

// testsOf is how the test hooks of a release have ended. A chart without any has passed.
func testsOf(hooks []*helmrelease.Hook) release.TestResult {
	result := release.TestsPassed
	for _, hook := range hooks {
		if !slices.Contains(hook.Events, helmrelease.HookTest) {
			continue
		}
		switch hook.LastRun.Phase {
		case helmrelease.HookPhaseSucceeded:
		case helmrelease.HookPhaseFailed:
			return release.TestsFailed
		default:
			result = ""
		}
	}

	return result
}

func contentOf(found *helmrelease.Release) (release.Content, error) {
	objects, err := objectsOf(found.Manifest)
	if err != nil {
		return release.Content{}, fmt.Errorf("reading the manifest of revision %d: %w", found.Version, err)
	}

	return release.Content{
		Target: release.Target{Namespace: found.Namespace, Name: found.Name}, Revision: revisionOf(found), Objects: objects,
	}, nil
}

// objectsOf are the objects of a manifest, lists taken apart.
func objectsOf(manifest string) ([]*unstructured.Unstructured, error) {
	var objects []*unstructured.Unstructured
	decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewBufferString(manifest), 4096)
	for {
		object := &unstructured.Unstructured{}
		err := decoder.Decode(object)
		if errors.Is(err, io.EOF) {
			return objects, nil
		}
		if err != nil {
			return nil, err
		}
		if len(object.Object) == 0 {
			continue
		}
		if !object.IsList() {
			objects = append(objects, object)
			continue
		}
		list, err := object.ToList()
		if err != nil {
			return nil, err
		}
		for i := range list.Items {
			objects = append(objects, &list.Items[i])
		}
	}
}
