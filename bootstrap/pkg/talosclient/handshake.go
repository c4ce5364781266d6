package talosclient

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"time"

	"google.golang.org/grpc/credentials"
)

// patientTLS are TLS credentials that wait for the server's first word before
// anything is written. With TLS 1.3 a server judges the client's certificate
// after the client's own handshake has ended; who writes before its verdict has
// arrived may be told "connection reset" instead of the reason. A gRPC server
// speaks first: it sends its settings.
type patientTLS struct {
	credentials.TransportCredentials
}

func newPatientTLS(config *tls.Config) patientTLS {
	return patientTLS{TransportCredentials: credentials.NewTLS(config)}
}

// ClientHandshake implements credentials.TransportCredentials.
func (p patientTLS) ClientHandshake(ctx context.Context, authority string, raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := p.TransportCredentials.ClientHandshake(ctx, authority, raw)
	if err != nil {
		return nil, nil, err
	}
	interrupt := context.AfterFunc(ctx, func() { _ = conn.SetReadDeadline(time.Unix(1, 0)) })
	first := make([]byte, 1)
	_, err = conn.Read(first)
	if !interrupt() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		_ = conn.Close()
		return nil, nil, fmt.Errorf("waiting for the server after the handshake: %w", err)
	}
	return &unreadConn{Conn: conn, unread: first}, info, nil
}

// Clone implements credentials.TransportCredentials.
func (p patientTLS) Clone() credentials.TransportCredentials {
	return patientTLS{TransportCredentials: p.TransportCredentials.Clone()}
}

// unreadConn gives back what was read ahead. One goroutine reads at a time.
type unreadConn struct {
	net.Conn
	unread []byte
}

// Read implements net.Conn.
func (c *unreadConn) Read(into []byte) (int, error) {
	if len(c.unread) > 0 {
		n := copy(into, c.unread)
		c.unread = c.unread[n:]
		return n, nil
	}
	return c.Conn.Read(into)
}
