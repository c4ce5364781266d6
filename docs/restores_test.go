package docs

import (
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	rbacv1 "k8s.io/api/rbac/v1"

	backupv1 "github.com/capi-talos/capi-talos/backup/api/v1alpha1"
)

// TestRestoresThatHaveFailedAreAlerted: the reasons that end a restore, as the page marks
// them, are those of one alert, and all others those of the other.
func TestRestoresThatHaveFailedAreAlerted(t *testing.T) {
	g := NewWithT(t)
	final := found("(?m)^\\| `([A-Z]\\w+)` † \\|", source(g, "docs/kinds/talosetcdrestore.md"))
	g.Expect(final).NotTo(BeEmpty())
	alerts := source(g, "config/metrics/alerts.yaml")
	_, ofRestores, _ := strings.Cut(alerts, "- alert: TalosRestoreFailed")
	for _, expression := range []string{`type="Ready", status="False", reason=~"([^"]+)"`, `type="Ready", status!="True", reason!~"([^"]+)"`} {
		reasons := found(expression, ofRestores)
		g.Expect(reasons).To(HaveLen(1))
		g.Expect(strings.Split(reasons[0], "|")).To(ConsistOf(final))
	}
}

// TestToRestoreIsARightOfItsOwn: of the roles on the pages one grants it, and nothing more
// than it needs.
func TestToRestoreIsARightOfItsOwn(t *testing.T) {
	g := NewWithT(t)
	var granted []string
	for _, shown := range examples(g) {
		for _, object := range shown.objects(g, examplesScheme(g)) {
			role, isRole := object.(*rbacv1.ClusterRole)
			if !isRole {
				continue
			}
			for _, rule := range role.Rules {
				restores := slices.ContainsFunc(rule.Resources, func(resource string) bool { return resource == "talosetcdrestores" || resource == rbacv1.ResourceAll })
				if restores && slices.ContainsFunc(rule.APIGroups, func(group string) bool { return group == backupv1.GroupVersion.Group || group == rbacv1.APIGroupAll }) {
					granted = append(granted, role.Name)
					g.Expect(rule.Verbs).To(ConsistOf("get", "list", "watch", "create", "delete"))
				}
			}
		}
	}
	g.Expect(granted).To(ConsistOf("talos-restore-user"))
}
