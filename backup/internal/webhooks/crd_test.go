package webhooks

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	backupv1 "github.com/capi-talos/capi-talos/backup/api/v1alpha1"
	"github.com/capi-talos/capi-talos/test/support/apiserver"
)

// management is a real API server with the kinds of the provider.
var management client.Client

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard())
	os.Exit(apiserver.Run(apiserver.Options{CRDs: []string{"config/backup/crd/bases"}}, func(started *apiserver.Server) int {
		scheme := runtime.NewScheme()
		err := backupv1.AddToScheme(scheme)
		if err == nil {
			management, err = client.New(started.Config, client.Options{Scheme: scheme})
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return m.Run()
	}))
}

func storeOf(change func(*backupv1.S3Store)) client.Object {
	made := &backupv1.TalosBackupStore{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "demo"}}
	made.Spec.S3 = backupv1.S3Store{Endpoint: "https://s3.example.com:9000", Bucket: "backups", CredentialsSecretName: "s3"}
	change(&made.Spec.S3)

	return made
}

func backupOf(change func(*backupv1.TalosEtcdBackup)) client.Object {
	made := &backupv1.TalosEtcdBackup{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "demo"}}
	made.Spec = backupv1.TalosEtcdBackupSpec{ClusterName: "prod", StoreName: "store"}
	change(made)

	return made
}

func scheduleOf(change func(*backupv1.TalosEtcdBackupSchedule)) client.Object {
	made := &backupv1.TalosEtcdBackupSchedule{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "demo"}}
	made.Spec = backupv1.TalosEtcdBackupScheduleSpec{StoreName: "store", Schedule: "0 2 * * *", MatchAll: ptr.To(true)}
	change(made)

	return made
}

func restoreOf(change func(*backupv1.TalosEtcdRestoreSpec)) client.Object {
	made := &backupv1.TalosEtcdRestore{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "demo"}}
	made.Spec = backupv1.TalosEtcdRestoreSpec{ClusterName: "prod", BackupName: "nightly", Confirm: "prod"}
	change(&made.Spec)

	return made
}

// TestWhatTheKindsRefuse: with words that name the way out.
func TestWhatTheKindsRefuse(t *testing.T) {
	for name, tt := range map[string]struct {
		object  client.Object
		message string
	}{
		"a store":                  {object: storeOf(func(*backupv1.S3Store) {})},
		"a store with a prefix":    {object: storeOf(func(s *backupv1.S3Store) { s.Prefix = "some/prefix" })},
		"HTTP":                     {object: storeOf(func(s *backupv1.S3Store) { s.Endpoint = "http://s3.example.com" }), message: "set insecure: AllowHTTP"},
		"HTTP that is allowed":     {object: storeOf(func(s *backupv1.S3Store) { s.Endpoint, s.Insecure = "http://s3.example.com", backupv1.AllowHTTP })},
		"a bucket in the endpoint": {object: storeOf(func(s *backupv1.S3Store) { s.Endpoint = "https://s3.example.com/backups" }), message: "bucket and prefix are fields of their own"},
		"a password in it":         {object: storeOf(func(s *backupv1.S3Store) { s.Endpoint = "https://me:it@s3.example.com" }), message: "credentials belong in the Secret"},
		"another scheme":           {object: storeOf(func(s *backupv1.S3Store) { s.Endpoint = "s3://bucket.example" }), message: "endpoint must be https://host"},
		"a prefix that goes up":    {object: storeOf(func(s *backupv1.S3Store) { s.Prefix = "../other" }), message: "spec.s3.prefix"},
		"no credentials":           {object: storeOf(func(s *backupv1.S3Store) { s.CredentialsSecretName = "" }), message: "spec.s3.credentialsSecretName"},
		"a key of KMS for S3": {object: storeOf(func(s *backupv1.S3Store) {
			s.Encryption = backupv1.ServerSideEncryption{Type: backupv1.EncryptionS3, KMSKeyID: "key"}
		}), message: "kmsKeyID is for type KMS only"},
		"a customer key without one": {object: storeOf(func(s *backupv1.S3Store) {
			s.Encryption = backupv1.ServerSideEncryption{Type: backupv1.EncryptionCustomerKey}
		}), message: "customerKeySecretName is for type CustomerKey, which needs it"},
		"a customer key by HTTP": {object: storeOf(func(s *backupv1.S3Store) {
			s.Endpoint, s.Insecure = "http://s3.example.com", backupv1.AllowHTTP
			s.Encryption = backupv1.ServerSideEncryption{Type: backupv1.EncryptionCustomerKey, CustomerKeySecretName: "key"}
		}), message: "the key would be readable on the way"},
		"a lock without a time": {object: storeOf(func(s *backupv1.S3Store) { s.ObjectLock.Mode = backupv1.LockCompliance }), message: "spec.s3.objectLock.days"},
		"a private key": {object: func() client.Object {
			made := storeOf(func(*backupv1.S3Store) {}).(*backupv1.TalosBackupStore) //nolint:forcetypeassert // It is one.
			made.Spec.Recipients = []string{"AGE-SECRET-KEY-1QQQQQQ"}
			return made
		}(), message: "recipients are public keys of age"},
		"a backup":                    {object: backupOf(func(*backupv1.TalosEtcdBackup) {})},
		"a backup of nothing":         {object: backupOf(func(b *backupv1.TalosEtcdBackup) { b.Spec.ClusterName = "" }), message: "spec.clusterName"},
		"a time that is too short":    {object: backupOf(func(b *backupv1.TalosEtcdBackup) { b.Spec.TimeoutSeconds = ptr.To(int32(1)) }), message: "spec.timeoutSeconds"},
		"another policy":              {object: backupOf(func(b *backupv1.TalosEtcdBackup) { b.Spec.DeletionPolicy = "Forget" }), message: "supported values"},
		"a schedule":                  {object: scheduleOf(func(*backupv1.TalosEtcdBackupSchedule) {})},
		"a schedule of no cluster":    {object: scheduleOf(func(s *backupv1.TalosEtcdBackupSchedule) { s.Spec.MatchAll = nil }), message: "set clusterSelector, or matchAll: true"},
		"retention of nothing":        {object: scheduleOf(func(s *backupv1.TalosEtcdBackupSchedule) { s.Spec.Retention.Last = ptr.To(int32(0)) }), message: "spec.retention.last"},
		"a name that no label can be": {object: scheduleOf(func(s *backupv1.TalosEtcdBackupSchedule) { s.Name = strings.Repeat("x", 64) }), message: "at most 63 characters"},
		"a selector beside all": {object: scheduleOf(func(s *backupv1.TalosEtcdBackupSchedule) {
			s.Spec.ClusterSelector.MatchLabels = map[string]string{"a": "b"}
		}), message: "and not both"},
		"a schedule that is not one time": {object: scheduleOf(func(s *backupv1.TalosEtcdBackupSchedule) { s.Spec.Schedule = "* *" }), message: "spec.schedule"},
	} {
		t.Run(name, func(t *testing.T) { expectRefused(t, tt.object, tt.message) })
	}
}

// TestWhatARestoreIsRefusedFor: nothing is wiped of which the name is not given twice.
func TestWhatARestoreIsRefusedFor(t *testing.T) {
	const (
		unconfirmed = "spec.confirm: Required value: confirm must be the name of the Cluster: all of its control plane machines are wiped"
		unsupported = "Unsupported value"
	)
	for name, tt := range map[string]struct {
		change  func(*backupv1.TalosEtcdRestoreSpec)
		message string
	}{
		"in place": {func(*backupv1.TalosEtcdRestoreSpec) {}, ""},
		"in place, and that is said": {func(s *backupv1.TalosEtcdRestoreSpec) {
			s.Mode, s.QuorumPolicy = backupv1.RestoreInPlace, backupv1.QuorumDiscard
		}, ""},
		"without the name once more":  {func(s *backupv1.TalosEtcdRestoreSpec) { s.Confirm = "" }, unconfirmed},
		"the same, and that is said":  {func(s *backupv1.TalosEtcdRestoreSpec) { s.Mode, s.Confirm = backupv1.RestoreInPlace, "" }, unconfirmed},
		"with another name":           {func(s *backupv1.TalosEtcdRestoreSpec) { s.Confirm = "production" }, unconfirmed},
		"with the name in capitals":   {func(s *backupv1.TalosEtcdRestoreSpec) { s.Confirm = "PROD" }, unconfirmed},
		"a new cluster":               {func(s *backupv1.TalosEtcdRestoreSpec) { s.Mode, s.Confirm = backupv1.RestoreNewCluster, "" }, ""},
		"a new cluster, confirmed":    {func(s *backupv1.TalosEtcdRestoreSpec) { s.Mode = backupv1.RestoreNewCluster }, ""},
		"a private key that is named": {func(s *backupv1.TalosEtcdRestoreSpec) { s.IdentitySecretName = "age" }, ""},
		"another mode":                {func(s *backupv1.TalosEtcdRestoreSpec) { s.Mode = "Elsewhere" }, "spec.mode: " + unsupported},
		"another policy":              {func(s *backupv1.TalosEtcdRestoreSpec) { s.QuorumPolicy = "Ask" }, "spec.quorumPolicy: " + unsupported},
		"of no cluster":               {func(s *backupv1.TalosEtcdRestoreSpec) { s.ClusterName, s.Confirm = "", "" }, "spec.clusterName"},
		"from no backup":              {func(s *backupv1.TalosEtcdRestoreSpec) { s.BackupName = "" }, "spec.backupName"},
		"of a cluster with a long name": {func(s *backupv1.TalosEtcdRestoreSpec) {
			s.ClusterName = strings.Repeat("x", 64)
			s.Confirm = s.ClusterName
		}, "spec.clusterName"},
	} {
		t.Run(name, func(t *testing.T) { expectRefused(t, restoreOf(tt.change), tt.message) })
	}
}

// TestARestoreIsCarriedOutOnce: nothing of it can be changed, not even what was left out.
func TestARestoreIsCarriedOutOnce(t *testing.T) {
	g := NewWithT(t)
	made := restoreOf(func(*backupv1.TalosEtcdRestoreSpec) {}).(*backupv1.TalosEtcdRestore) //nolint:forcetypeassert // It is one.
	made.Name = "kept"
	g.Expect(management.Create(t.Context(), made)).To(Succeed())
	for name, change := range map[string]func(*backupv1.TalosEtcdRestoreSpec){
		"cluster":  func(s *backupv1.TalosEtcdRestoreSpec) { s.ClusterName, s.Confirm = "other", "other" },
		"backup":   func(s *backupv1.TalosEtcdRestoreSpec) { s.BackupName = "other" },
		"mode":     func(s *backupv1.TalosEtcdRestoreSpec) { s.Mode = backupv1.RestoreNewCluster },
		"default":  func(s *backupv1.TalosEtcdRestoreSpec) { s.Mode = backupv1.RestoreInPlace },
		"policy":   func(s *backupv1.TalosEtcdRestoreSpec) { s.QuorumPolicy = backupv1.QuorumDiscard },
		"identity": func(s *backupv1.TalosEtcdRestoreSpec) { s.IdentitySecretName = "age" },
	} {
		changed := made.DeepCopy()
		change(&changed.Spec)
		g.Expect(management.Update(t.Context(), changed)).To(MatchError(ContainSubstring("immutable: make another TalosEtcdRestore")), name)
	}
	changed := made.DeepCopy()
	changed.Annotations = map[string]string{backupv1.OutcomeAnnotation: "Failed"}
	g.Expect(management.Update(t.Context(), changed)).To(Succeed())
}

// expectRefused says that an object is refused with words; without words it is accepted.
func expectRefused(t *testing.T, object client.Object, message string) {
	t.Helper()
	g := NewWithT(t)
	err := management.Create(t.Context(), object, client.DryRunAll)
	if message == "" {
		g.Expect(err).NotTo(HaveOccurred())
		return
	}
	g.Expect(err).To(MatchError(ContainSubstring(message)))
	g.Expect(err.Error()).NotTo(ContainSubstring("AGE-SECRET-KEY"))
}

// TestABackupIsMadeOnce: but for what becomes of its data, nothing of it can be changed.
func TestABackupIsMadeOnce(t *testing.T) {
	g := NewWithT(t)
	made := backupOf(func(b *backupv1.TalosEtcdBackup) { b.Name, b.Spec.Secrets = "kept", backupv1.SecretsExclude }).(*backupv1.TalosEtcdBackup) //nolint:forcetypeassert // It is one.
	g.Expect(management.Create(t.Context(), made)).To(Succeed())
	for name, change := range map[string]func(*backupv1.TalosEtcdBackupSpec){
		"cluster": func(s *backupv1.TalosEtcdBackupSpec) { s.ClusterName = "other" }, "store": func(s *backupv1.TalosEtcdBackupSpec) { s.StoreName = "other" },
		"secrets": func(s *backupv1.TalosEtcdBackupSpec) { s.Secrets = backupv1.SecretsInclude }, "no secrets": func(s *backupv1.TalosEtcdBackupSpec) { s.Secrets = "" },
		"a time": func(s *backupv1.TalosEtcdBackupSpec) { s.TimeoutSeconds = ptr.To(int32(600)) },
	} {
		changed := made.DeepCopy()
		change(&changed.Spec)
		g.Expect(management.Update(t.Context(), changed)).To(MatchError(ContainSubstring("immutable")), name)
	}
	changed := made.DeepCopy()
	changed.Spec.DeletionPolicy = backupv1.DeletionDelete
	g.Expect(management.Update(t.Context(), changed)).To(Succeed())
}
