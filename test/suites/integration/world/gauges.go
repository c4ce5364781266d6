package world

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capi-talos/capi-talos/test/stack/management"
)

// scrapeTimeout bounds one look at the metrics of a manager.
const scrapeTimeout = 30 * time.Second

// Gauges are what a manager has at a moment.
type Gauges struct {
	// Goroutines are those of the process.
	Goroutines int
	// Connections are the open ones to the Talos API.
	Connections int
}

// Scraper reads the metrics of the managers.
type Scraper struct{ token string }

// NewScraper makes a service account in a namespace that may read metrics.
func NewScraper(ctx context.Context, admin client.Client, namespace string) (*Scraper, error) {
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "gauges"}}
	role := &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: namespace + "-gauges"},
		Rules:      []rbacv1.PolicyRule{{Verbs: []string{"get"}, NonResourceURLs: []string{"/metrics"}}},
	}
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: role.Name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role.Name},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: account.Name}},
	}
	for _, object := range []client.Object{account, role, binding} {
		if err := admin.Create(ctx, object); err != nil && !apierrors.IsAlreadyExists(err) {
			return nil, fmt.Errorf("making the reader of metrics: %w", err)
		}
	}
	const life = 12 * time.Hour
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: ptr.To(int64(life.Seconds()))}}
	if err := admin.SubResource("token").Create(ctx, account, request); err != nil {
		return nil, fmt.Errorf("asking for a token of the reader of metrics: %w", err)
	}
	return &Scraper{token: request.Status.Token}, nil
}

// Read asks a manager.
func (s *Scraper) Read(ctx context.Context, manager *management.Manager) (Gauges, error) {
	var found Gauges
	missing := map[string]*int{"go_goroutines": &found.Goroutines}
	if manager.Name == management.ControlPlane || manager.Name == management.Infrastructure {
		// The others connect to no machine.
		missing["capi_talos_talos_connections"] = &found.Connections
	}
	for name, into := range missing {
		value, err := s.Value(ctx, manager, name)
		if err != nil {
			return Gauges{}, err
		}
		*into = int(value)
	}
	return found, nil
}

// Value is that of a series of a manager, by its name with its labels.
func (s *Scraper) Value(ctx context.Context, manager *management.Manager, series string) (float64, error) {
	ctx, cancel := context.WithTimeout(ctx, scrapeTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, manager.Diagnostics+"/metrics", http.NoBody)
	if err != nil {
		return 0, err
	}
	request.Header.Set("Authorization", "Bearer "+s.token)
	transport := &http.Transport{TLSClientConfig: &tls.Config{
		InsecureSkipVerify: true, //nolint:gosec // G402: managers make the certificate of this endpoint themselves.
	}}
	defer transport.CloseIdleConnections()
	response, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		return 0, fmt.Errorf("reading the metrics of manager %s: %w", manager.Name, err)
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		return 0, fmt.Errorf("reading the metrics of manager %s: %s", manager.Name, response.Status)
	}
	for lines := bufio.NewScanner(response.Body); lines.Scan(); {
		value, found := strings.CutPrefix(lines.Text(), series+" ")
		if !found {
			continue
		}
		number, err := strconv.ParseFloat(value, 64)
		if err != nil {
			return 0, fmt.Errorf("reading metric %s of manager %s: %w", series, manager.Name, err)
		}
		return number, nil
	}
	return 0, fmt.Errorf("manager %s has no metric %s", manager.Name, series)
}
