// Package kubeconfig refuses kubeconfigs that reach for what the manager has. Whoever may
// write Secrets in a namespace may write the kubeconfig of a Cluster there, and a kubeconfig
// can name files: with the token of the manager's own service account as tokenFile, and a
// server of their own, its author would be sent that token.
package kubeconfig

import (
	"context"
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/cluster-api/util/secret"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// dataKey is the key of the kubeconfig in its Secret (sigs.k8s.io/cluster-api/util/secret).
const dataKey = secret.KubeconfigDataName

// ErrNotSelfContained says that a kubeconfig names files or programs.
var ErrNotSelfContained = errors.New("it names a file or program of the manager")

// Check returns an error that wraps ErrNotSelfContained and names the field when a
// kubeconfig names files or programs, and another one when it is no kubeconfig. Errors
// repeat no content.
func Check(content []byte) error {
	config, err := clientcmd.Load(content)
	if err != nil {
		// The error may quote what it could not read.
		return errors.New("reading the kubeconfig: it is none")
	}
	for _, cluster := range config.Clusters {
		if cluster.CertificateAuthority != "" {
			return notSelfContained("certificate-authority")
		}
	}
	for _, user := range config.AuthInfos {
		if field := reachingField(user); field != "" {
			return notSelfContained(field)
		}
	}

	return nil
}

// reachingField is the field of a user that names a file or program; empty when none does.
func reachingField(user *clientcmdapi.AuthInfo) string {
	switch {
	case user.TokenFile != "":
		return "tokenFile"
	case user.ClientCertificate != "":
		return "client-certificate"
	case user.ClientKey != "":
		return "client-key"
	case user.Exec != nil:
		return "exec"
	case user.AuthProvider != nil:
		return "auth-provider"
	}

	return ""
}

func notSelfContained(field string) error {
	return fmt.Errorf("the kubeconfig has the field %s: %w; write the content itself into the kubeconfig", field, ErrNotSelfContained)
}

// NewReader reads from inner, and returns the error of Check instead of the kubeconfig
// Secret of a Cluster that is not self-contained.
func NewReader(inner client.Reader) client.Reader { return reader{inner} }

type reader struct{ client.Reader }

// Get implements client.Reader.
func (r reader) Get(ctx context.Context, key client.ObjectKey, into client.Object, opts ...client.GetOption) error {
	if err := r.Reader.Get(ctx, key, into, opts...); err != nil {
		return err
	}
	found, isSecret := into.(*corev1.Secret)
	if !isSecret || !strings.HasSuffix(key.Name, secret.Name("", secret.Kubeconfig)) || len(found.Data[dataKey]) == 0 {
		return nil
	}
	if err := Check(found.Data[dataKey]); err != nil {
		*found = corev1.Secret{}
		return fmt.Errorf("using Secret %s: %w", key, err)
	}

	return nil
}
