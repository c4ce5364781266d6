package kube

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync/atomic"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/version"
)

// administrators is the group that may do everything; others may do nothing,
// for there is no authorization here.
const administrators = "system:masters"

// guard lets only administrators in, by their client certificates, but for what
// kube-apiserver tells everybody whom it knows. It knows nobody without a certificate:
// Talos starts it with anonymous-auth=false
// (internal/app/machined/pkg/controllers/k8s/control_plane_static_pod.go of v1.13.9).
func guard(handler http.Handler, kubernetes string) http.Handler {
	mux := http.NewServeMux()
	for _, path := range []string{"/readyz", "/livez", "/healthz"} {
		mux.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("ok")) })
	}
	mux.HandleFunc("/version", func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, http.StatusOK, versionInfo(kubernetes)) })
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		user := r.TLS.VerifiedChains[0][0].Subject
		if !slices.Contains(user.Organization, administrators) {
			writeError(w, apierrors.NewForbidden(schema.GroupResource{}, "", fmt.Errorf("user %q is not in group %s", user.CommonName, administrators)))
			return
		}
		handler.ServeHTTP(w, r)
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if len(r.TLS.VerifiedChains) == 0 {
			writeError(w, apierrors.NewUnauthorized("Unauthorized"))
			return
		}
		mux.ServeHTTP(w, r)
	})
}

// errNoSpace is what etcd says to who writes while its database is full.
const errNoSpace = "etcdserver: mvcc: database space exceeded"

// refuseWrites refuses what writes while full is set. Reads are answered, and so is
// the deletion of an object that goes at once: it is a transaction without a put
// (server/etcdserver/apply/apply.go of etcd v3.6.16, applierV3Capped).
func refuseWrites(full *atomic.Bool, handler http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		writes := r.Method == http.MethodPost || r.Method == http.MethodPut || r.Method == http.MethodPatch
		if writes && full.Load() {
			writeError(w, apierrors.NewInternalError(errors.New(errNoSpace)))
			return
		}
		handler.ServeHTTP(w, r)
	})
}

// versionInfo is the answer of /version. A version that is none is told as it
// is.
func versionInfo(kubernetes string) version.Info {
	info := version.Info{GitVersion: kubernetes, Platform: "linux/amd64"}
	var major, minor int
	if _, err := fmt.Sscanf(kubernetes, "v%d.%d", &major, &minor); err == nil {
		info.Major, info.Minor = fmt.Sprint(major), fmt.Sprint(minor)
	}
	return info
}
