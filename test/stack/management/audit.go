package management

import "path/filepath"

// auditPolicy has each request noted once it is answered, without its content. A
// watch is noted when it ends.
const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived, ResponseStarted]
rules:
- level: Metadata
`

// AuditLog is the file with an event of audit.k8s.io/v1 per line, where the
// cluster was started with Audit.
func (c *Cluster) AuditLog() string { return filepath.Join(c.LogDir(), "audit.log") }

// auditArgs are the API server's arguments for the audit log.
func (c *Cluster) auditArgs(wanted bool) ([]string, error) {
	if !wanted {
		return nil, nil
	}
	folder, file := filepath.Join(c.Dir, "audit"), "policy.yaml"
	if err := write(folder, map[string][]byte{file: []byte(auditPolicy)}); err != nil {
		return nil, err
	}
	return []string{
		"--audit-policy-file=" + filepath.Join(folder, file),
		"--audit-log-path=" + c.AuditLog(),
		"--audit-log-mode=blocking",
	}, nil
}
