package metrics

import "sync"

// ClaimResult is how a claim of a host has ended.
type ClaimResult string

// Results of claims.
const (
	// ClaimClaimed says that the host was claimed.
	ClaimClaimed ClaimResult = "claimed"
	// ClaimConflict says that the host had changed, or was taken by somebody else,
	// since it was chosen; another one is tried next.
	ClaimConflict ClaimResult = "conflict"
)

// ReleaseResult is how a release of a host has ended.
type ReleaseResult string

// Results of releases.
const (
	// ReleaseWiped says that the machine is proven wiped.
	ReleaseWiped ReleaseResult = "wiped"
	// ReleaseUnconfigured says that the host was given back while its machine had no
	// configuration of ours: it never got one, or was wiped to get another.
	ReleaseUnconfigured ReleaseResult = "unconfigured"
	// ReleaseUnproven says that the TalosMachine went though the machine was not
	// proven wiped. If it is wiped later on, that counts too.
	ReleaseUnproven ReleaseResult = "unproven"
	// ReleaseDeleted says that the TalosHost went though the machine was not proven
	// wiped.
	ReleaseDeleted ReleaseResult = "deleted"
)

var (
	claimResults   = []ClaimResult{ClaimClaimed, ClaimConflict}
	releaseResults = []ReleaseResult{ReleaseWiped, ReleaseUnconfigured, ReleaseUnproven, ReleaseDeleted}
)

// Counts count claims and releases of hosts. They are safe for concurrent use,
// and lost with the process.
type Counts struct {
	mu       sync.Mutex
	claims   map[string]map[ClaimResult]int
	releases map[string]map[ReleaseResult]int
}

// NewCounts returns Counts that have counted nothing yet.
func NewCounts() *Counts {
	return &Counts{claims: map[string]map[ClaimResult]int{}, releases: map[string]map[ReleaseResult]int{}}
}

// Claim counts a claim of a host of a namespace.
func (c *Counts) Claim(namespace string, result ClaimResult) {
	c.mu.Lock()
	defer c.mu.Unlock()
	add(c.claims, namespace, result)
}

// Release counts a release of a host of a namespace.
func (c *Counts) Release(namespace string, result ReleaseResult) {
	c.mu.Lock()
	defer c.mu.Unlock()
	add(c.releases, namespace, result)
}

// Claims are the claims in a namespace that have ended like that.
func (c *Counts) Claims(namespace string, result ClaimResult) int {
	c.mu.Lock()
	defer c.mu.Unlock()

	return c.claims[namespace][result]
}

// Releases are the releases in a namespace that have ended like that.
func (c *Counts) Releases(namespace string, result ReleaseResult) int {
	c.mu.Lock()
	defer c.mu.Unlock()

	return c.releases[namespace][result]
}

func add[R comparable](counts map[string]map[R]int, namespace string, result R) {
	if counts[namespace] == nil {
		counts[namespace] = map[R]int{}
	}
	counts[namespace][result]++
}
