package kind

import (
	"bytes"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// certManager is the name of everything of it.
const certManager = "cert-manager"

// CertManager is the manifest of cert-manager for the test bed: its kinds, and
// its controllers in one image. Its webhook is not part of it.
func CertManager(kinds []byte, image string) ([]byte, error) {
	meta := metav1.ObjectMeta{Namespace: certManager, Name: certManager}
	labels := map[string]string{"app": certManager}
	objects := []any{
		&corev1.Namespace{
			TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"},
			ObjectMeta: metav1.ObjectMeta{Name: certManager},
		},
		&corev1.ServiceAccount{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ServiceAccount"}, ObjectMeta: meta},
		&rbacv1.ClusterRoleBinding{
			TypeMeta:   metav1.TypeMeta{APIVersion: rbacv1.SchemeGroupVersion.String(), Kind: "ClusterRoleBinding"},
			ObjectMeta: metav1.ObjectMeta{Name: certManager},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
			Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: certManager, Name: certManager}},
		},
		&appsv1.Deployment{
			TypeMeta:   metav1.TypeMeta{APIVersion: appsv1.SchemeGroupVersion.String(), Kind: "Deployment"},
			ObjectMeta: meta,
			Spec: appsv1.DeploymentSpec{
				Selector: &metav1.LabelSelector{MatchLabels: labels},
				Template: corev1.PodTemplateSpec{
					ObjectMeta: metav1.ObjectMeta{Labels: labels},
					Spec: corev1.PodSpec{
						ServiceAccountName: certManager,
						Containers: []corev1.Container{{
							Name: "controllers", Image: image, ImagePullPolicy: corev1.PullNever,
							Env: []corev1.EnvVar{{Name: "POD_NAMESPACE", Value: certManager}},
						}},
					},
				},
			},
		},
	}
	var manifest bytes.Buffer
	for _, object := range objects {
		text, err := yaml.Marshal(object)
		if err != nil {
			return nil, fmt.Errorf("writing the manifest of cert-manager: %w", err)
		}
		fmt.Fprintf(&manifest, "%s---\n", text)
	}
	manifest.Write(kinds)
	return manifest.Bytes(), nil
}
