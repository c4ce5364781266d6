package secrets

import (
	"encoding/base64"
	"errors"
	"fmt"
	"time"

	"github.com/siderolabs/talos/pkg/machinery/client/config"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
)

var errNoCredentials = errors.New("the talosconfig has no client certificate")

// Talosconfig is a client configuration of the Talos API with one context,
// named like the cluster.
func Talosconfig(cluster string, endpoints []string, creds talosclient.Credentials) ([]byte, error) {
	cfg := config.Config{
		Context: cluster,
		Contexts: map[string]*config.Context{cluster: {
			Endpoints: endpoints,
			CA:        base64.StdEncoding.EncodeToString(creds.CA),
			Crt:       base64.StdEncoding.EncodeToString(creds.Cert),
			Key:       base64.StdEncoding.EncodeToString(creds.Key),
		}},
	}
	encoded, err := cfg.Bytes()
	if err != nil {
		return nil, fmt.Errorf("encoding the talosconfig: %w", err)
	}
	return encoded, nil
}

// ParseTalosconfig reads the current context of a client configuration. Its
// errors never repeat content.
func ParseTalosconfig(raw []byte) (talosclient.Credentials, []string, error) {
	cfg, err := config.FromBytes(raw)
	if err != nil {
		return talosclient.Credentials{}, nil, errors.New("reading the talosconfig: it is no YAML of a talosconfig")
	}
	current, found := cfg.Contexts[cfg.Context]
	if !found {
		return talosclient.Credentials{}, nil, errors.New("reading the talosconfig: its current context is missing")
	}
	var creds talosclient.Credentials
	for _, field := range []struct {
		into *[]byte
		from string
	}{{&creds.CA, current.CA}, {&creds.Cert, current.Crt}, {&creds.Key, current.Key}} {
		if *field.into, err = base64.StdEncoding.DecodeString(field.from); err != nil || len(*field.into) == 0 {
			return talosclient.Credentials{}, nil, errNoCredentials
		}
	}
	return creds, current.Endpoints, nil
}

// Validity is the time from which and until which a client certificate is
// valid.
func Validity(creds talosclient.Credentials) (notBefore, notAfter time.Time, err error) {
	cert, err := parseCertificate(creds.Cert)
	if err != nil {
		return time.Time{}, time.Time{}, fmt.Errorf("reading the client certificate: %w", err)
	}
	return cert.NotBefore, cert.NotAfter, nil
}

// IsFresh reports whether a client certificate has more than half of its life left. One that
// is not valid yet is fresh only where its CA is not either: else it was made while the clock
// was ahead.
func IsFresh(creds talosclient.Credentials, now time.Time) bool {
	cert, err := parseCertificate(creds.Cert)
	if err != nil {
		return false
	}
	ca, err := parseCertificate(creds.CA)

	return err == nil && !isPremature(cert, ca, now) && now.Before(cert.NotBefore.Add(cert.NotAfter.Sub(cert.NotBefore)/2))
}
