package integration

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/test/fleet/simfleet"
)

// rolesOfUsers are the ClusterRoles that docs/install.md has for users.
func rolesOfUsers(t *testing.T) []rbacv1.ClusterRole {
	t.Helper()
	g := NewWithT(t)
	page, err := os.ReadFile(filepath.Join(world.Source, "docs", "install.md"))
	g.Expect(err).NotTo(HaveOccurred())
	var roles []rbacv1.ClusterRole
	for _, block := range regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllStringSubmatch(string(page), -1) {
		if !strings.Contains(block[1], "kind: ClusterRole\n") {
			continue
		}
		role := rbacv1.ClusterRole{}
		g.Expect(yaml.UnmarshalStrict([]byte(block[1]), &role)).To(Succeed())
		roles = append(roles, role)
	}
	g.Expect(roles).To(HaveLen(2))
	return roles
}

// tenant is a client of a user that has both roles in a namespace.
func tenant(t *testing.T, namespace string) client.Client {
	t.Helper()
	g, ctx, user := NewWithT(t), t.Context(), "tenant-of-"+namespace
	for _, role := range rolesOfUsers(t) {
		g.Expect(client.IgnoreAlreadyExists(world.Client.Create(ctx, &role))).To(Succeed())
		g.Expect(world.Client.Create(ctx, &rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: role.Name},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role.Name},
			Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: user}},
		})).To(Succeed())
	}
	config := rest.CopyConfig(world.Stack.Config)
	config.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: []string{"system:authenticated"}}
	found, err := client.New(config, client.Options{Scheme: world.Client.Scheme()})
	g.Expect(err).NotTo(HaveOccurred())
	g.Eventually(func() error {
		return found.List(ctx, &infrav1.TalosHostList{}, client.InNamespace(namespace))
	}).WithTimeout(timeout).Should(Succeed(), "the rights are there")
	return found
}

// TestWhatATenantCannotDo: a user with the rights of docs/install.md means harm to a
// control plane that runs, from its own namespace and from another one. Each attempt is
// refused, or has no effect on any machine.
func TestWhatATenantCannotDo(t *testing.T) {
	t.Parallel()
	const name, elsewhere = "victim", "intruder"
	g, ctx := NewWithT(t), t.Context()
	machines := newFleet(t, simfleet.Options{})
	hosts := runCluster(t, machines, name, 1, 1)
	createNamespace(t, elsewhere)
	forgetHosts(t, elsewhere)
	inside, outside := tenant(t, name), tenant(t, elsewhere)
	booted := boots(machines, hosts)

	used := &infrav1.TalosHost{}
	g.Expect(inside.Get(ctx, client.ObjectKey{Namespace: name, Name: hosts[0].Name}, used)).To(Succeed())
	g.Expect(used.Spec.Handover.Progress).To(Equal(infrav1.HandoverRan))
	twin := func(namespace, called string, change func(*infrav1.TalosHost)) *infrav1.TalosHost {
		host := hosts[0].Manifest(namespace, nil)
		host.Name = called
		change(host)
		return host
	}
	patch := func(c client.Client, change func(*infrav1.TalosHost)) error {
		changed := used.DeepCopy()
		change(changed)
		return c.Patch(ctx, changed, client.MergeFrom(used))
	}
	for attack, tt := range map[string]struct {
		try     func() error
		refused func(error) bool
	}{
		"a host with a claim": {func() error {
			return inside.Create(ctx, twin(name, "claimed", func(h *infrav1.TalosHost) { h.Spec.ConsumerRef = used.Spec.ConsumerRef }))
		}, apierrors.IsForbidden},
		"a host with a hand-over": {func() error {
			return inside.Create(ctx, twin(name, "handed", func(h *infrav1.TalosHost) { h.Spec.Handover = used.Spec.Handover }))
		}, apierrors.IsForbidden},
		"a host with a release": {func() error {
			return inside.Create(ctx, twin(name, "released", func(h *infrav1.TalosHost) {
				h.Spec.AdoptionSecretRef.Name = name + "-talosconfig"
				h.Spec.Release = infrav1.HostRelease{Policy: infrav1.ReleaseWipeAll, RequestedAt: metav1.Now()}
			}))
		}, apierrors.IsForbidden},
		"a claim in another namespace": {func() error {
			return outside.Create(ctx, twin(elsewhere, "claimed", func(h *infrav1.TalosHost) {
				h.Spec.ConsumerRef = used.Spec.ConsumerRef
				h.Spec.ConsumerRef.Namespace = elsewhere
			}))
		}, apierrors.IsForbidden},
		"a release is written": {func() error {
			return patch(inside, func(h *infrav1.TalosHost) {
				h.Spec.Release = infrav1.HostRelease{Policy: infrav1.ReleaseWipeAll, RequestedAt: metav1.Now()}
			})
		}, apierrors.IsInvalid},
		"a hand-over is taken away": {func() error {
			return patch(inside, func(h *infrav1.TalosHost) { h.Spec.Handover = infrav1.HostHandover{} })
		}, apierrors.IsInvalid},
		"the address is changed": {func() error {
			return patch(inside, func(h *infrav1.TalosHost) { h.Spec.Addresses = []string{hosts[1].Address} })
		}, apierrors.IsInvalid},
		"the finalizer is taken away": {func() error {
			return patch(inside, func(h *infrav1.TalosHost) { h.Finalizers = nil })
		}, apierrors.IsForbidden},
		"the host is deleted": {func() error { return inside.Delete(ctx, used.DeepCopy()) }, apierrors.IsForbidden},
		"the host is deleted as if it was moved": {func() error {
			moved := func(h *infrav1.TalosHost) {
				metav1.SetMetaDataAnnotation(&h.ObjectMeta, infrav1.DeleteForMoveAnnotation, "")
			}
			if err := patch(inside, moved); err != nil {
				return err
			}
			err := inside.Delete(ctx, used.DeepCopy())
			marked := used.DeepCopy()
			moved(marked)
			g.Expect(world.Client.Patch(ctx, used.DeepCopy(), client.MergeFrom(marked))).To(Succeed(), "the annotation goes again")
			return err
		}, apierrors.IsForbidden},
		"Secrets are read": {func() error {
			return inside.List(ctx, &corev1.SecretList{}, client.InNamespace(name))
		}, apierrors.IsForbidden},
		"a TalosMachine is written": {func() error {
			return inside.Create(ctx, &infrav1.TalosMachine{
				ObjectMeta: metav1.ObjectMeta{Namespace: name, Name: "mine"}, Spec: infrav1.TalosMachineSpec{Metal: &infrav1.TalosMachineMetalSpec{}},
			})
		}, apierrors.IsForbidden},
		"the namespace asks for privileged Pods": {func() error {
			namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
			labelled := namespace.DeepCopy()
			labelled.Labels = map[string]string{infrav1.PodSecurityLabel: infrav1.PodSecurityPrivileged}
			return inside.Patch(ctx, labelled, client.MergeFrom(namespace))
		}, apierrors.IsForbidden},
		"the hosts of another namespace are read": {func() error {
			return outside.List(ctx, &infrav1.TalosHostList{}, client.InNamespace(name))
		}, apierrors.IsForbidden},
		"the Clusters of another namespace are read": {func() error {
			return outside.List(ctx, &clusterv1.ClusterList{}, client.InNamespace(name))
		}, apierrors.IsForbidden},
	} {
		err := tt.try()
		g.Expect(tt.refused(err)).To(BeTrue(), "%s: %v", attack, err)
	}

	// What is not refused has no effect.
	adopts := func(h *infrav1.TalosHost) {
		h.Spec.AdoptionPolicy, h.Spec.AdoptionSecretRef.Name = infrav1.AdoptionWipeForeign, name+"-talosconfig"
	}
	g.Expect(inside.Create(ctx, twin(name, "adopting", adopts))).To(Succeed())
	g.Expect(outside.Create(ctx, twin(elsewhere, "beside", func(*infrav1.TalosHost) {}))).To(Succeed())
	for _, host := range []client.ObjectKey{{Namespace: name, Name: "adopting"}, {Namespace: elsewhere, Name: "beside"}} {
		g.Eventually(func(g Gomega) {
			found := &infrav1.TalosHost{}
			g.Expect(world.Client.Get(ctx, host, found)).To(Succeed())
			told := told(found, infrav1.IdentityVerifiedCondition)
			g.Expect(told.Reason).To(Equal(infrav1.IdentityDuplicateReason))
			if host.Namespace == elsewhere {
				g.Expect(told.Message).To(ContainSubstring("A TalosHost of another namespace"))
				g.Expect(told.Message).NotTo(ContainSubstring(hosts[0].Name))
			}
		}).WithTimeout(timeout).Should(Succeed())
	}
	g.Consistently(func(g Gomega) {
		g.Expect(boots(machines, hosts)).To(Equal(booted))
		found := &infrav1.TalosHost{}
		g.Expect(world.Client.Get(ctx, client.ObjectKeyFromObject(used), found)).To(Succeed())
		g.Expect(found.Status.State).To(Equal(infrav1.HostProvisioned))
	}, watched, time.Second).Should(Succeed())
	awaitAvailable(t, name)
	for _, host := range []*infrav1.TalosHost{twin(name, "adopting", adopts)} {
		g.Expect(inside.Delete(ctx, host)).To(Succeed(), "a free host is the keeper's")
	}
	deleteClusters(t, name, name)
	expectStates(t, name, infrav1.HostAvailable, len(hosts))
}
