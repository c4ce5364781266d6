package management

import (
	"path/filepath"

	"github.com/capi-talos/capi-talos/test/support/audit"
)

// AuditLog is the file with an event of audit.k8s.io/v1 per line, where the
// cluster was started with Audit.
func (c *Cluster) AuditLog() string { return filepath.Join(c.LogDir(), "audit.log") }

// auditArgs are the API server's arguments for the audit log.
func (c *Cluster) auditArgs(wanted bool) ([]string, error) {
	if !wanted {
		return nil, nil
	}
	flags, err := audit.Flags(filepath.Join(c.Dir, "audit"), c.AuditLog())
	if err != nil {
		return nil, err
	}
	args := make([]string, 0, len(flags))
	for name, value := range flags {
		args = append(args, "--"+name+"="+value)
	}
	return args, nil
}
