package helm

import (
	"io"

	"helm.sh/helm/v3/pkg/action"

	"github.com/capi-talos/capi-talos/addons/internal/release"
)

// UninstallKeepingHistory does what "helm uninstall --keep-history" does.
func (c *Client) UninstallKeepingHistory(target release.Target) error {
	config, _, err := c.configuration(target.Namespace)
	if err != nil {
		return err
	}
	uninstall := action.NewUninstall(config)
	uninstall.KeepHistory = true
	_, err = uninstall.Run(target.Name)

	return err
}

// Bounded is a body of at most so many bytes.
func Bounded(body io.Reader, left int64) io.Reader {
	return &boundedBody{ReadCloser: io.NopCloser(body), left: left}
}
