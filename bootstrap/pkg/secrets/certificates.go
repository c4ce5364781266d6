package secrets

import (
	"maps"
	"sync"
	"time"

	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
)

// certificateLife is how long a client certificate of a ClientCertificates is valid.
// It is replaced when half of its life is over, by its own times: a process that was
// suspended, or whose clock was set, measures others.
const certificateLife = time.Hour

// ClientCertificates keeps the client certificates with which a manager talks to the
// nodes of clusters, so that a reconcile does not make new ones. What nobody has asked
// for since it was due is forgotten: its cluster may be gone, or be looked after by
// another manager.
type ClientCertificates struct {
	clock clock.PassiveClock

	mu   sync.Mutex
	kept map[certificateKey]certificate
}

type certificateKey struct {
	cluster client.ObjectKey
	role    string
}

type certificate struct {
	digest      string
	credentials talosclient.Credentials
}

// NewClientCertificates returns an empty ClientCertificates.
func NewClientCertificates(c clock.PassiveClock) *ClientCertificates {
	return &ClientCertificates{clock: c, kept: map[certificateKey]certificate{}}
}

// For returns credentials of one of the Role constants for the nodes of a cluster,
// which has the given bundle. They are valid for half an hour at least.
func (c *ClientCertificates) For(cluster client.ObjectKey, bundle *Bundle, role string) (talosclient.Credentials, error) {
	c.mu.Lock()
	defer c.mu.Unlock()

	now, digest, key := c.clock.Now(), bundle.Digest(), certificateKey{cluster, role}
	if found, ok := c.kept[key]; ok && found.digest == digest && IsFresh(found.credentials, now) {
		return found.credentials, nil
	}
	credentials, err := bundle.ClientCredentials(role, now, certificateLife)
	if err != nil {
		return talosclient.Credentials{}, err
	}
	maps.DeleteFunc(c.kept, func(_ certificateKey, found certificate) bool { return !IsFresh(found.credentials, now) })
	c.kept[key] = certificate{digest: digest, credentials: credentials}

	return credentials, nil
}

// Forget drops the credentials for a cluster that is gone.
func (c *ClientCertificates) Forget(cluster client.ObjectKey) {
	c.mu.Lock()
	defer c.mu.Unlock()
	maps.DeleteFunc(c.kept, func(key certificateKey, _ certificate) bool { return key.cluster == cluster })
}
