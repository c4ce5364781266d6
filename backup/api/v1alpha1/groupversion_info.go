// Package v1alpha1 contains the API of the backup provider: TalosBackupStore,
// TalosEtcdBackup and TalosEtcdBackupSchedule.
// +kubebuilder:object:generate=true
// +groupName=backup.cluster.x-k8s.io
package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

var (
	// GroupVersion is the group and version of the objects of this package.
	GroupVersion = schema.GroupVersion{Group: "backup.cluster.x-k8s.io", Version: "v1alpha1"}

	schemeBuilder = runtime.NewSchemeBuilder(addKnownTypes)

	// AddToScheme adds the types of this package to a scheme.
	AddToScheme = schemeBuilder.AddToScheme
)

// Kinds of this package.
const (
	// TalosBackupStoreKind is the kind of a TalosBackupStore.
	TalosBackupStoreKind = "TalosBackupStore"
	// TalosEtcdBackupKind is the kind of a TalosEtcdBackup.
	TalosEtcdBackupKind = "TalosEtcdBackup"
	// TalosEtcdBackupScheduleKind is the kind of a TalosEtcdBackupSchedule.
	TalosEtcdBackupScheduleKind = "TalosEtcdBackupSchedule"
	// TalosEtcdRestoreKind is the kind of a TalosEtcdRestore.
	TalosEtcdRestoreKind = "TalosEtcdRestore"
)

func addKnownTypes(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(GroupVersion,
		&TalosBackupStore{}, &TalosBackupStoreList{},
		&TalosEtcdBackup{}, &TalosEtcdBackupList{},
		&TalosEtcdBackupSchedule{}, &TalosEtcdBackupScheduleList{},
		&TalosEtcdRestore{}, &TalosEtcdRestoreList{},
	)
	metav1.AddToGroupVersion(scheme, GroupVersion)

	return nil
}
