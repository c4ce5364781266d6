package v1alpha1

// AddonSource says where a chart comes from: exactly one of repository, registry and
// configMap.
// +kubebuilder:validation:XValidation:rule="[has(self.repository), has(self.registry), has(self.configMap)].filter(x, x).size() == 1",message="exactly one of repository, registry and configMap must be set"
type AddonSource struct {
	// repository is a chart of a Helm repository, which is served by HTTP.
	// +optional
	Repository RepositorySource `json:"repository,omitempty,omitzero"`

	// registry is a chart of an OCI registry.
	// +optional
	Registry RegistrySource `json:"registry,omitempty,omitzero"`

	// configMap is a chart archive in a ConfigMap of the namespace.
	// +optional
	ConfigMap ConfigMapSource `json:"configMap,omitempty,omitzero"`

	// intervalSeconds is after how many seconds the version is resolved again, so that
	// a new version of the range is rolled out. 0 means never: it is resolved when the
	// source changes. Defaults to 3600.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=31536000
	IntervalSeconds *int32 `json:"intervalSeconds,omitempty"`
}

// RepositorySource is a chart of a Helm repository.
// +kubebuilder:validation:XValidation:rule="self.url.startsWith('https://') || (has(self.insecure) && self.insecure == 'AllowHTTP')",message="url must begin with https://; set insecure: AllowHTTP to use http://, where everybody on the way can change the chart"
// +kubebuilder:validation:XValidation:rule="self.url.startsWith('https://') || !has(self.credentialsSecretName)",message="credentialsSecretName needs a url that begins with https://: the password would be readable on the way"
// +kubebuilder:validation:XValidation:rule="!self.url.matches('^[a-z]+://[^/?#]*@')",message="url must have no user and no password: put them into the Secret of credentialsSecretName"
type RepositorySource struct {
	// url is the address of the repository, without index.yaml.
	// +required
	// +kubebuilder:validation:MinLength=8
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:XValidation:rule="isURL(self) && url(self).getScheme() in ['http', 'https'] && size(url(self).getHost()) > 0",message="url must be an absolute URL that begins with https:// or http://; for a registry (oci://) use source.registry"
	URL string `json:"url,omitempty"`

	// chart is the name of the chart in the repository.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=250
	// +kubebuilder:validation:Pattern=`^[a-zA-Z0-9._-]+$`
	Chart string `json:"chart,omitempty"`

	// version is a version of the chart, or a range of versions, of which the newest is
	// taken: 1.2.3, 1.x, >=1.2.0 <2.0.0. Pre-releases count only where the range names
	// one. By default the newest version is taken.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	Version string `json:"version,omitempty"`

	// credentialsSecretName is the name of a Secret of type kubernetes.io/basic-auth in
	// the namespace. By default nobody logs in.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	CredentialsSecretName string `json:"credentialsSecretName,omitempty"`

	// caSecretName is the name of a Secret in the namespace with the CA certificates of
	// the server under the key ca.crt. By default those of the system are trusted.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	CASecretName string `json:"caSecretName,omitempty"`

	// insecure lets a url begin with http://, where it is AllowHTTP. By default it must
	// begin with https://.
	// +optional
	Insecure InsecureSource `json:"insecure,omitempty"`
}

// RegistrySource is a chart of an OCI registry.
// +kubebuilder:validation:XValidation:rule="!has(self.insecure) || !has(self.credentialsSecretName)",message="credentialsSecretName cannot be used with insecure: the password would be readable on the way"
type RegistrySource struct {
	// url is the address of the chart, with oci:// and without a tag.
	// +required
	// +kubebuilder:validation:MinLength=8
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:XValidation:rule="self.matches('^oci://[^/?#@ ]+(/[a-z0-9]+(([.]|__?|-+)[a-z0-9]+)*)+$')",message="url must be oci://<host>/<repository>, the repository in lower case, with no slash at its end and without tag or digest: the version belongs in source.registry.version; for a repository (https://) use source.repository"
	URL string `json:"url,omitempty"`

	// version is a version of the chart, or a range of versions, of which the newest is
	// taken. By default the newest version is taken.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	Version string `json:"version,omitempty"`

	// credentialsSecretName is the name of a Secret of type
	// kubernetes.io/dockerconfigjson in the namespace. By default nobody logs in.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	CredentialsSecretName string `json:"credentialsSecretName,omitempty"`

	// caSecretName is the name of a Secret in the namespace with the CA certificates of
	// the server under the key ca.crt. By default those of the system are trusted.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	CASecretName string `json:"caSecretName,omitempty"`

	// insecure lets the registry be asked by HTTP, where it is AllowHTTP. By default it
	// is asked by HTTPS.
	// +optional
	Insecure InsecureSource `json:"insecure,omitempty"`
}

// InsecureSource says which protection a source does without.
// +kubebuilder:validation:Enum=AllowHTTP
type InsecureSource string

// AllowHTTP lets a source be asked by HTTP.
const AllowHTTP InsecureSource = "AllowHTTP"

// ConfigMapSource is a chart archive in a ConfigMap.
type ConfigMapSource struct {
	// name is the name of the ConfigMap, in the namespace of the add-on.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name,omitempty"`

	// key is the key of the archive (.tgz) in binaryData. Defaults to chart.tgz.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Key string `json:"key,omitempty"`
}
