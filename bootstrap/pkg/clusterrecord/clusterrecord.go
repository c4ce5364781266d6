// Package clusterrecord keeps, on the <cluster>-ca Secret, with what a cluster
// began: its secrets bundle and its networks. Machines that are made later get
// the same, or nothing. The Secret survives a move, and the loss of all status.
package clusterrecord

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/siderolabs/talos/pkg/machinery/constants"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	bootstrapv1 "github.com/capi-talos/capi-talos/bootstrap/api/v1beta1"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/secrets"
)

// Record is with what a cluster began. A part that was never recorded is empty.
type Record struct {
	// Bundle and Encryption are the two digests of the secrets bundle.
	Bundle, Encryption string
	// Network is spec.clusterNetwork of the Cluster, with Talos' defaults, as JSON.
	Network string
}

// Of is what the Secret with the Kubernetes CA records; nothing where it is nil.
func Of(ca *corev1.Secret) Record {
	if ca == nil {
		return Record{}
	}

	return Record{
		Bundle:     ca.Annotations[bootstrapv1.BundleDigestAnnotation],
		Encryption: ca.Annotations[bootstrapv1.EncryptionDigestAnnotation],
		Network:    ca.Annotations[bootstrapv1.ClusterNetworkAnnotation],
	}
}

// For is the record of a cluster that begins now.
func For(cluster *clusterv1.Cluster, bundle *secrets.Bundle) Record {
	// Strings and a number: this cannot fail.
	raw, _ := json.Marshal(networkOf(cluster))

	return Record{Bundle: bundle.Digest(), Encryption: bundle.EncryptionDigest(), Network: string(raw)}
}

// WriteTo writes the record into the metadata of the Secret.
func (r Record) WriteTo(ca *metav1.ObjectMeta) {
	metav1.SetMetaDataAnnotation(ca, bootstrapv1.BundleDigestAnnotation, r.Bundle)
	metav1.SetMetaDataAnnotation(ca, bootstrapv1.EncryptionDigestAnnotation, r.Encryption)
	metav1.SetMetaDataAnnotation(ca, bootstrapv1.ClusterNetworkAnnotation, r.Network)
}

// HasOtherEncryption reports whether the bundle is the recorded one but for the
// key with which Secrets are encrypted in etcd.
func (r Record) HasOtherEncryption(bundle *secrets.Bundle) bool {
	return r.Bundle == bundle.Digest() && r.Encryption != "" && r.Encryption != bundle.EncryptionDigest()
}

// network is what all machines of a cluster have to agree on.
type network struct {
	Pods          []string `json:"pods"`
	Services      []string `json:"services"`
	ServiceDomain string   `json:"serviceDomain"`
	APIServerPort int32    `json:"apiServerPort"`
}

// networkOf is the network of a Cluster. What it leaves open is what Talos takes.
func networkOf(cluster *clusterv1.Cluster) network {
	spec := cluster.Spec.ClusterNetwork
	found := network{
		Pods: spec.Pods.CIDRBlocks, Services: spec.Services.CIDRBlocks,
		ServiceDomain: spec.ServiceDomain, APIServerPort: spec.APIServerPort,
	}
	if len(found.Pods) == 0 {
		found.Pods = []string{constants.DefaultIPv4PodCIDR}
	}
	if len(found.Services) == 0 {
		found.Services = []string{constants.DefaultIPv4ServiceCIDR}
	}
	if found.ServiceDomain == "" {
		found.ServiceDomain = constants.DefaultDNSDomain
	}
	if found.APIServerPort == 0 {
		found.APIServerPort = constants.DefaultControlPlanePort
	}

	return found
}

// NetworkChanges says in words what of the networks of a Cluster is other than
// recorded, each change with the field; nothing when nothing is recorded, or
// while the annotation AllowNetworkChange is on the Cluster.
func (r Record) NetworkChanges(cluster *clusterv1.Cluster) []string {
	if r.Network == "" || metav1.HasAnnotation(cluster.ObjectMeta, bootstrapv1.AllowNetworkChangeAnnotation) {
		return nil
	}
	var before network
	if err := json.Unmarshal([]byte(r.Network), &before); err != nil {
		return []string{"annotation " + bootstrapv1.ClusterNetworkAnnotation + " of Secret " + secrets.CAName(cluster.Name) + " cannot be read"}
	}
	var changes []string
	now := networkOf(cluster)
	add := func(field, was, is string) {
		changes = append(changes, fmt.Sprintf("spec.clusterNetwork.%s was %s and is %s", field, was, is))
	}
	if !slices.Equal(before.Pods, now.Pods) {
		add("pods.cidrBlocks", strings.Join(before.Pods, ", "), strings.Join(now.Pods, ", "))
	}
	if !slices.Equal(before.Services, now.Services) {
		add("services.cidrBlocks", strings.Join(before.Services, ", "), strings.Join(now.Services, ", "))
	}
	if before.ServiceDomain != now.ServiceDomain {
		add("serviceDomain", before.ServiceDomain, now.ServiceDomain)
	}
	if before.APIServerPort != now.APIServerPort {
		add("apiServerPort", strconv.Itoa(int(before.APIServerPort)), strconv.Itoa(int(now.APIServerPort)))
	}

	return changes
}

// NetworkProblem says, as one sentence, what is changed and how to go on; empty
// when nothing is.
func (r Record) NetworkProblem(cluster *clusterv1.Cluster) string {
	changes := r.NetworkChanges(cluster)
	if len(changes) == 0 {
		return ""
	}

	return fmt.Sprintf("Cluster %s has changed its network since it began: %s; nodes of one cluster need the same: change it back, "+
		"or let new machines have it with annotation %s on the Cluster", cluster.Name, strings.Join(changes, ", "), bootstrapv1.AllowNetworkChangeAnnotation)
}
