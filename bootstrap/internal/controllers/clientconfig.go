package controllers

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/collections"

	bootstrapv1 "github.com/capi-talos/capi-talos/bootstrap/api/v1beta1"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/secrets"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
)

// reconcileClientConfig keeps the administrator's client configuration of the
// Talos API. The configs of control plane Machines do it.
func (r *Reconciler) reconcileClientConfig(ctx context.Context, s *scope) error {
	if !s.controlPlane {
		return nil
	}
	if s.bundle == nil {
		s.clientConfig = isFalse(bootstrapv1.ClientConfigWaitingReason, "Waiting for the secrets of the cluster; see condition CertificatesAvailable")
		return nil
	}
	if err := r.writeClientConfig(ctx, s); err != nil {
		s.clientConfig = isFalse(bootstrapv1.ClientConfigErrorReason, "Secret %s cannot be written", secrets.TalosconfigName(s.cluster.Name))
		return err
	}
	s.clientConfig = isTrue(bootstrapv1.ClientConfigAvailableReason)

	return nil
}

func (r *Reconciler) writeClientConfig(ctx context.Context, s *scope) error {
	endpoints, err := r.talosEndpoints(ctx, s)
	if err != nil {
		return err
	}
	name := secrets.TalosconfigName(s.cluster.Name)
	stored, err := r.getSecret(ctx, s, name)
	if err != nil {
		return err
	}
	var raw []byte
	if stored != nil {
		raw = stored.Data[secrets.TalosconfigKey]
	}
	content, renewAfter, err := clientConfig(s, raw, endpoints, r.Clock.Now())
	if err != nil {
		return err
	}
	s.renewAfter = renewAfter
	switch {
	case content == nil:
		return nil
	case stored == nil:
		made := &corev1.Secret{
			ObjectMeta: clusterSecretMeta(s, name),
			Type:       clusterv1.ClusterSecretType,
			Data:       map[string][]byte{secrets.TalosconfigKey: content},
		}
		if err := r.Client.Create(ctx, made); err != nil {
			return fmt.Errorf("creating Secret %s: %w", name, err)
		}
	default:
		if err := r.patchSecret(ctx, stored, func(secret *corev1.Secret) {
			if secret.Data == nil {
				secret.Data = map[string][]byte{}
			}
			secret.Data[secrets.TalosconfigKey] = content
		}); err != nil {
			return fmt.Errorf("renewing Secret %s: %w", name, err)
		}
	}

	return nil
}

// clientConfig is the client configuration that is to replace the stored one,
// and when it is to be renewed; nil when the stored one is current. The stored
// certificate is kept until half of its life is over.
func clientConfig(s *scope, stored []byte, endpoints []string, now time.Time) ([]byte, time.Duration, error) {
	credentials, renewAt, known := currentCredentials(s, stored)
	if known && now.Before(renewAt) {
		_, present, err := secrets.ParseTalosconfig(stored)
		if err == nil && slices.Equal(present, endpoints) {
			return nil, renewAt.Sub(now), nil
		}
	} else {
		var err error
		if credentials, err = s.bundle.ClientCredentials(secrets.RoleAdmin, now, clientConfigLife); err != nil {
			return nil, 0, err
		}
		renewAt = now.Add(clientConfigLife / 2)
	}
	content, err := secrets.Talosconfig(s.cluster.Name, endpoints, credentials)

	return content, renewAt.Sub(now), err
}

// currentCredentials are the credentials of a stored client configuration, when
// they are of the cluster's CA.
func currentCredentials(s *scope, stored []byte) (_ talosclient.Credentials, renewAt time.Time, known bool) {
	credentials, _, err := secrets.ParseTalosconfig(stored)
	if err != nil || !bytes.Equal(credentials.CA, s.bundle.TalosCA()) {
		return talosclient.Credentials{}, time.Time{}, false
	}
	from, until, err := secrets.Validity(credentials)
	if err != nil {
		return talosclient.Credentials{}, time.Time{}, false
	}

	return credentials, from.Add(until.Sub(from) / 2), true
}

// talosEndpoints are the addresses of the control plane nodes. The control
// plane endpoint is none of them: it may be a load balancer that does not know
// the Talos API, or a virtual address that goes with the quorum.
func (r *Reconciler) talosEndpoints(ctx context.Context, s *scope) ([]string, error) {
	machines, err := collections.GetFilteredMachinesForCluster(ctx, r.Client, s.cluster,
		collections.ControlPlaneMachines(s.cluster.Name), collections.Not(collections.HasDeletionTimestamp))
	if err != nil {
		return nil, fmt.Errorf("listing the control plane Machines: %w", err)
	}
	var endpoints []string
	for _, machine := range machines {
		for _, address := range machine.Status.Addresses {
			isIP := address.Type == clusterv1.MachineInternalIP || address.Type == clusterv1.MachineExternalIP
			if isIP && address.Address != s.cluster.Spec.ControlPlaneEndpoint.Host && !slices.Contains(endpoints, address.Address) {
				endpoints = append(endpoints, address.Address)
			}
		}
	}
	slices.Sort(endpoints)

	return endpoints, nil
}
