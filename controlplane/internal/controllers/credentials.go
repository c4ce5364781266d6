package controllers

import (
	"fmt"
	"maps"
	"sync"
	"time"

	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/secrets"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
)

// credentialLife is how long a client certificate of ours is valid. It is
// replaced at half of that.
const credentialLife = time.Hour

// credentialStore keeps the client certificates of clusters, so that a pass
// does not make new ones. What nobody has asked for since it was due is forgotten:
// its cluster may be gone, or be looked after by another manager.
type credentialStore struct {
	clock clock.PassiveClock

	mu     sync.Mutex
	stored map[client.ObjectKey]storedCredentials
}

type storedCredentials struct {
	digest      string
	renewAt     time.Time
	credentials talosclient.Credentials
}

func newCredentialStore(c clock.PassiveClock) *credentialStore {
	return &credentialStore{clock: c, stored: map[client.ObjectKey]storedCredentials{}}
}

// reader are credentials that may look at the nodes of a cluster.
func (c *credentialStore) reader(cluster client.ObjectKey, bundle *secrets.Bundle) (talosclient.Credentials, error) {
	c.mu.Lock()
	defer c.mu.Unlock()

	now, digest := c.clock.Now(), bundle.Digest()
	if found, ok := c.stored[cluster]; ok && found.digest == digest && now.Before(found.renewAt) {
		return found.credentials, nil
	}
	credentials, err := bundle.ClientCredentials(secrets.RoleReader, now, credentialLife)
	if err != nil {
		return talosclient.Credentials{}, fmt.Errorf("making a client certificate for the Talos API: %w", err)
	}
	maps.DeleteFunc(c.stored, func(_ client.ObjectKey, found storedCredentials) bool { return !now.Before(found.renewAt) })
	c.stored[cluster] = storedCredentials{digest: digest, renewAt: now.Add(credentialLife / 2), credentials: credentials}

	return credentials, nil
}

// forget drops the credentials of a cluster that is gone.
func (c *credentialStore) forget(cluster client.ObjectKey) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.stored, cluster)
}
