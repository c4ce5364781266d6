package store

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"regexp"

	"github.com/minio/minio-go/v7"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/egress"
)

// Reason is what is wrong, as a reason of a condition.
type Reason string

// The reasons.
const (
	// NotFound is a key without an object.
	NotFound Reason = "NotFound"
	// NoBucket is a bucket that there is not.
	NoBucket Reason = "BucketNotFound"
	// InvalidCredentials are an access key that the server does not know, or a wrong secret.
	InvalidCredentials Reason = "InvalidCredentials"
	// Denied is a request that the credentials do not allow.
	Denied Reason = "AccessDenied"
	// Exists is a key that somebody else's object has.
	Exists Reason = "AlreadyExists"
	// Locked is an object that can't be deleted yet.
	Locked Reason = "ObjectLocked"
	// LockUnsupported is a bucket that locks no objects, though it is to.
	LockUnsupported Reason = "ObjectLockUnsupported"
	// ClockSkew is a clock that is off, here or there.
	ClockSkew Reason = "ClockSkew"
	// Full is a server without room.
	Full Reason = "StoreFull"
	// Redirected is a server that sends requests elsewhere.
	Redirected Reason = "Redirected"
	// Refused is an address at which no server of a user may be.
	Refused Reason = "EndpointRefused"
	// UntrustedCertificate is one that no trusted CA has signed, or of another name.
	UntrustedCertificate Reason = "UntrustedCertificate"
	// Rejected is a request that the server takes for wrong, and will again.
	Rejected Reason = "RequestRejected"
	// Unavailable is all that may pass by itself.
	Unavailable Reason = "StoreUnavailable"
)

// next is what helps.
var next = map[Reason]string{
	NoBucket:             "create it, or correct its name",
	InvalidCredentials:   "correct the Secret with the credentials",
	Denied:               "allow it to the access key",
	LockUnsupported:      "that is chosen when a bucket is made: name another one, or take objectLock out",
	ClockSkew:            "set the clocks of the manager's node and of the server",
	Full:                 "make room there",
	Redirected:           "name the endpoint and the region of the bucket itself",
	Refused:              "name another endpoint; the manager allows this one with --allow-local-endpoints",
	UntrustedCertificate: "give the CA that has signed it, and the name that is in it",
}

// Error is an error of a store.
type Error struct {
	// Reason is what is wrong.
	Reason Reason
	doing  string
	cause  error
}

// NewError is an error of a store with a reason that its server does not know.
func NewError(reason Reason, doing string, cause error) error {
	return &Error{Reason: reason, doing: doing, cause: cause}
}

// Error says what was being done, what is wrong, and what helps.
func (e *Error) Error() string {
	text := e.doing + ": " + e.cause.Error()
	if helps := next[e.Reason]; helps != "" {
		text += ": " + helps
	}

	return text
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.cause }

// ReasonOf is the reason of an error of a store, and empty for any other error.
func ReasonOf(err error) Reason {
	if found, ok := errors.AsType[*Error](err); ok {
		return found.Reason
	}

	return ""
}

// codes are the reasons of what servers answer, by their code.
var codes = map[string]Reason{
	minio.NoSuchKey: NotFound, "NoSuchVersion": NotFound, "NoSuchUpload": NotFound, "NotFound": NotFound,
	minio.NoSuchBucket:   NoBucket,
	"InvalidAccessKeyId": InvalidCredentials, "XAdminUserNotFound": InvalidCredentials, "SignatureDoesNotMatch": InvalidCredentials, "InvalidToken": InvalidCredentials, "ExpiredToken": InvalidCredentials,
	"AccessDenied": Denied, "AllAccessDisabled": Denied, "AccountProblem": Denied,
	"PreconditionFailed": Exists, "ConditionalRequestConflict": Exists,
	"ObjectLocked": Locked, "InvalidRetentionPeriod": Rejected,
	"RequestTimeTooSkewed": ClockSkew, "RequestExpired": ClockSkew,
	"XMinioStorageFull": Full, "XMinioAdminBucketQuotaExceeded": Full, "QuotaExceeded": Full, "EntityTooLarge": Rejected,
	"PermanentRedirect": Redirected, "AuthorizationHeaderMalformed": Redirected, "IllegalLocationConstraintException": Redirected,
}

// statuses are those by the status of an answer that has no code that is known.
var statuses = map[int]Reason{
	http.StatusNotFound: NotFound, http.StatusForbidden: Denied, http.StatusUnauthorized: InvalidCredentials, http.StatusPreconditionFailed: Exists,
	http.StatusInsufficientStorage: Full, http.StatusBadRequest: Rejected, http.StatusMethodNotAllowed: Rejected, http.StatusNotImplemented: Rejected,
}

// judge says what is wrong with a request. Errors of the context are its caller's own.
func judge(doing string, err error) error {
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("%s: %w", doing, err)
	}

	return &Error{Reason: reason(err), doing: doing, cause: spoken(err)}
}

// code is what servers that speak S3 call their errors. The library puts the status line of
// others there, and the beginning of their answer into the message.
var code = regexp.MustCompile(`^[A-Za-z0-9.]+$`)

// spoken is an error without the answer of a server that does not speak S3: an endpoint may
// be any server that the manager reaches, and its users must not read by it.
func spoken(err error) error {
	answer := minio.ToErrorResponse(err)
	if answer.StatusCode == 0 || code.MatchString(answer.Code) {
		return err
	}

	return fmt.Errorf("the server has answered with status %d, and not as S3 does", answer.StatusCode)
}

func reason(err error) Reason {
	var redirected redirectedError
	var authority x509.UnknownAuthorityError
	var name x509.HostnameError
	var invalid x509.CertificateInvalidError
	switch {
	case errors.As(err, &redirected):
		return Redirected
	case errors.Is(err, egress.ErrForbidden):
		return Refused
	case errors.As(err, &authority), errors.As(err, &name), errors.As(err, &invalid):
		return UntrustedCertificate
	}
	answer := minio.ToErrorResponse(err)
	if found, ok := codes[answer.Code]; ok {
		return found
	}
	if found, ok := statuses[answer.StatusCode]; ok {
		return found
	}

	return Unavailable
}

func isNotImplemented(err error) bool {
	answer, _ := errors.AsType[minio.ErrorResponse](err)

	return answer.Code == "NotImplemented" || answer.StatusCode == http.StatusNotImplemented
}
