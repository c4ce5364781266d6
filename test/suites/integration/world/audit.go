package world

import (
	"io"

	"github.com/capi-talos/capi-talos/test/support/audit"
)

// Request is what somebody has asked the API server for.
//
// It is here, too, for crowd, which make bench-scale brings to older revisions: they have it
// here alone.
type Request = audit.Request

// ReadAudit reads the requests of an audit log.
func ReadAudit(log io.Reader) ([]Request, error) { return audit.Read(log) }
