package taloshost

import (
	"context"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
)

// Lookup finds other hosts in the cache of the manager, by its index. All fields are
// required.
type Lookup struct {
	// Cached reads TalosHosts and TalosMachines from the cache.
	Cached client.Reader
	// Live reads TalosHosts as they are now, and TalosMachines that the cache does not know.
	Live client.Reader
}

// candidates lists the hosts that may stand for the machine of a host, which is known, or
// has told itself, to be of the given identity. They are those of the cache: nobody may
// change them.
func (l Lookup) candidates(ctx context.Context, host *infrav1.TalosHost, told infrav1.HostIdentity) ([]infrav1.TalosHost, error) {
	return listByKeys(ctx, l.Cached, append(addressKeys(host), identityKeys(told)...))
}

// Duplicate finds the host that goes before a host, see DuplicateOf.
func (l Lookup) Duplicate(ctx context.Context, host *infrav1.TalosHost, told infrav1.HostIdentity) (*infrav1.TalosHost, error) {
	others, err := l.candidates(ctx, host, told)

	return DuplicateOf(host, told, others, l.InUse(ctx, host.Namespace)), err
}

// DuplicateInUse finds the host for whose sake a host is not wiped, see DuplicateInUse.
func (l Lookup) DuplicateInUse(ctx context.Context, host *infrav1.TalosHost, told infrav1.HostIdentity) (*infrav1.TalosHost, error) {
	others, err := l.candidates(ctx, host, told)

	return DuplicateInUse(host, told, others, l.InUse(ctx, host.Namespace)), err
}

// DuplicateAhead finds the host to which the machine of a claimed host is left before it is
// given a configuration, see DuplicateAhead.
func (l Lookup) DuplicateAhead(ctx context.Context, host *infrav1.TalosHost, told infrav1.HostIdentity) (*infrav1.TalosHost, error) {
	others, err := l.candidates(ctx, host, told)

	return DuplicateAhead(host, told, others, l.InUse(ctx, host.Namespace)), err
}

// DuplicateAheadNow is DuplicateAhead by what the hosts record now: the cache may not show yet
// what another worker has just written. Which hosts these may be it knows, for a host is claimed
// by what the cache shows of its machine.
func (l Lookup) DuplicateAheadNow(ctx context.Context, host *infrav1.TalosHost, told infrav1.HostIdentity) (*infrav1.TalosHost, error) {
	others, err := l.candidates(ctx, host, told)
	if err != nil {
		return nil, err
	}
	var current []infrav1.TalosHost
	for i := range others {
		key, now := client.ObjectKeyFromObject(&others[i]), infrav1.TalosHost{}
		if key == client.ObjectKeyFromObject(host) {
			continue
		}
		err := l.Live.Get(ctx, key, &now)
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("reading TalosHost %s: %w", key.Name, err)
		}
		current = append(current, now)
	}

	return DuplicateAhead(host, told, current, l.InUse(ctx, host.Namespace)), nil
}

// Affected lists the hosts that stand for the machine of a host, or were found to be a
// duplicate: what they may do depends on each other.
func (l Lookup) Affected(ctx context.Context, host *infrav1.TalosHost) ([]infrav1.TalosHost, error) {
	found, err := listByKeys(ctx, l.Cached, keysOf(host))
	if err != nil {
		return nil, err
	}
	found = slices.DeleteFunc(found, func(other infrav1.TalosHost) bool {
		return !AreDuplicates(host, KnownIdentity(host), &other, RecordsUse) && !AreDuplicates(&other, KnownIdentity(&other), host, RecordsUse)
	})
	waiting, err := listByField(ctx, l.Cached, duplicateField, isDuplicate)
	for _, other := range waiting {
		if other.UID != host.UID {
			found = append(found, other)
		}
	}

	return ordered(found), err
}

// AmbiguousUUIDs picks the UUIDs that several machines of a namespace have told. That a
// UUID is worth nothing is for the hosts of a namespace alone to say: elsewhere anybody
// may name it.
func (l Lookup) AmbiguousUUIDs(namespace string) AmbiguousUUIDs {
	return func(ctx context.Context, uuids ...string) ([]string, error) {
		var found []string
		for _, uuid := range uuids {
			if !UsableUUID(uuid) {
				continue
			}
			hosts, err := listByKeys(ctx, l.Cached, []string{uuidKey(uuid)}, client.InNamespace(namespace))
			if err != nil {
				return nil, err
			}
			if isAmbiguous(uuid, hosts) {
				found = append(found, uuid)
			}
		}
		return found, nil
	}
}

// InUse reports which hosts are in use, seen from a namespace. There the records are
// believed. Elsewhere the TalosMachine must exist that they name, with the provider ID
// of the claim: the hosts of one tenant must not keep those of another from their work.
// What the cache does not know is asked live, and where nobody says a host is in use.
func (l Lookup) InUse(ctx context.Context, namespace string) Used {
	return func(host *infrav1.TalosHost) bool {
		ref := host.Spec.ConsumerRef
		switch {
		case !RecordsUse(host):
			return false
		case host.Namespace == namespace:
			return true
		case ref.Name == "" || ref.ProviderID == "":
			return false
		}
		for _, reader := range []client.Reader{l.Cached, l.Live} {
			machine := &infrav1.TalosMachine{}
			err := reader.Get(ctx, client.ObjectKey{Namespace: host.Namespace, Name: ref.Name}, machine)
			if (err != nil && !apierrors.IsNotFound(err)) || (err == nil && machine.Spec.ProviderID == ref.ProviderID) {
				return true
			}
		}
		return false
	}
}
