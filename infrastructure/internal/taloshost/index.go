package taloshost

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
)

// Fields of the index of TalosHosts.
const (
	// machineField has what tells the machine of a host from others: each address and
	// each identity that anybody has given it.
	machineField = "taloshost.machine"
	// duplicateField is there for a host that was found to be a duplicate of another one.
	duplicateField = "taloshost.duplicate"

	isDuplicate = "true"
)

// Indexes are the fields by which the cache of the manager has to index TalosHosts.
func Indexes() map[string]client.IndexerFunc {
	return map[string]client.IndexerFunc{
		machineField: func(object client.Object) []string {
			host, ok := object.(*infrav1.TalosHost)
			if !ok {
				return nil
			}
			return keysOf(host)
		},
		duplicateField: func(object client.Object) []string {
			host, ok := object.(*infrav1.TalosHost)
			if !ok || !wasDuplicate(host) {
				return nil
			}
			return []string{isDuplicate}
		},
	}
}

// AddIndexes has the cache of a manager index TalosHosts.
func AddIndexes(ctx context.Context, indexer client.FieldIndexer) error {
	for field, keys := range Indexes() {
		if err := indexer.IndexField(ctx, &infrav1.TalosHost{}, field, keys); err != nil {
			return fmt.Errorf("indexing TalosHosts by %s: %w", field, err)
		}
	}

	return nil
}

func wasDuplicate(host *infrav1.TalosHost) bool {
	found := conditions.Get(host, infrav1.IdentityVerifiedCondition)

	return found != nil && found.Reason == infrav1.IdentityDuplicateReason
}

// keysOf are the keys of a host in the index: two hosts are duplicates only if they have
// one in common.
func keysOf(host *infrav1.TalosHost) []string {
	keys := addressKeys(host)
	for _, identity := range []infrav1.HostIdentity{host.Spec.Identity, RecordedIdentity(host), ObservedIdentity(host)} {
		keys = append(keys, identityKeys(identity)...)
	}
	slices.Sort(keys)

	return slices.Compact(keys)
}

func addressKeys(host *infrav1.TalosHost) []string {
	var keys []string
	for _, address := range addressesOf(host) {
		keys = append(keys, "address/"+address)
	}

	return keys
}

func identityKeys(identity infrav1.HostIdentity) []string {
	var keys []string
	if UsableUUID(identity.UUID) {
		keys = append(keys, uuidKey(identity.UUID))
	}
	for _, mac := range identity.MACAddresses {
		if UsableMAC(mac) {
			keys = append(keys, "mac/"+strings.ToLower(mac))
		}
	}

	return keys
}

func uuidKey(uuid string) string {
	return "uuid/" + strings.ToLower(uuid)
}

// listByKeys lists the hosts that have one of some keys, ordered by their names. They are
// those of the cache: nobody may change them.
func listByKeys(ctx context.Context, reader client.Reader, keys []string, options ...client.ListOption) ([]infrav1.TalosHost, error) {
	var found []infrav1.TalosHost
	for _, key := range keys {
		more, err := listByField(ctx, reader, machineField, key, options...)
		if err != nil {
			return nil, err
		}
		found = append(found, more...)
	}

	return ordered(found), nil
}

func listByField(ctx context.Context, reader client.Reader, field, key string, options ...client.ListOption) ([]infrav1.TalosHost, error) {
	list := &infrav1.TalosHostList{}
	if err := reader.List(ctx, list, append(options, client.MatchingFields{field: key}, client.UnsafeDisableDeepCopy)...); err != nil {
		return nil, fmt.Errorf("listing TalosHosts by %s %s: %w", field, key, err)
	}

	return list.Items, nil
}

// ordered are hosts by their names, each once.
func ordered(hosts []infrav1.TalosHost) []infrav1.TalosHost {
	compare := func(a, b infrav1.TalosHost) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	}
	slices.SortStableFunc(hosts, compare)

	return slices.CompactFunc(hosts, func(a, b infrav1.TalosHost) bool { return compare(a, b) == 0 })
}
