package v1beta1

// Defaults of TalosControlPlane.
const (
	// DefaultReplicas is the number of control plane machines when
	// spec.replicas is not set.
	DefaultReplicas = int32(1)

	// MinReplicasWithoutSurge is the least number of replicas with which a rollout may begin
	// by deleting a Machine: maxSurge 0 counts as 1 with fewer.
	MinReplicasWithoutSurge = int32(3)

	// DefaultEtcdLeaveTimeoutSeconds is used when
	// spec.etcd.leaveTimeoutSeconds is not set.
	DefaultEtcdLeaveTimeoutSeconds = int32(120)

	// DefaultMinHealthyPeriodSeconds is used when
	// spec.remediation.minHealthyPeriodSeconds is not set.
	DefaultMinHealthyPeriodSeconds = int32(60 * 60)

	// DefaultMachineNamingTemplate is used when spec.machineNaming.template is
	// not set.
	DefaultMachineNamingTemplate = "{{ .talosControlPlane.name }}-{{ .random }}"
)
