package plan

import (
	"slices"

	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
	"github.com/capi-talos/capi-talos/controlplane/internal/health"
)

// decideInitialized records that the API server has answered: from then on etcd holds
// what users have stored. What a Machine serves that was let go does not count: it
// is being wiped.
func decideInitialized(facts Facts) *Decision {
	hasData := func(machine MachineFacts) bool { return machine.EtcdData == health.EtcdDataPresent }
	isKept := func(machine MachineFacts) bool { return !machine.hookReleased() }
	switch {
	case !slices.ContainsFunc(facts.Machines, isKept), facts.APIServer != health.APIServerReady, facts.Intent != nil && facts.Intent.Initialized,
		facts.Intent == nil && !slices.ContainsFunc(facts.Machines, hasData):
		return nil
	default:
		return &Decision{Action: RecordInitialized, Machine: bootstrappedMachine(facts), Reason: controlplanev1.InitializedReason,
			Message: "The API server answers at the control plane endpoint"}
	}
}

// decideEtcd is about the one bootstrap of etcd. It returns nil when etcd runs
// and that is recorded.
func decideEtcd(facts Facts) *Decision {
	for _, machine := range facts.Machines {
		if machine.EtcdData == health.EtcdDataPresent {
			return decideRunningEtcd(facts)
		}
	}
	for _, machine := range facts.Machines {
		if !machine.Held { // Else it has no configuration, and no etcd data either.
			if waiting := waitForNode(machine); waiting != nil {
				return waiting
			}
			continue
		}
		if machine.Name == facts.Override {
			return &Decision{Action: HandOver, Machine: machine.Name, Reason: controlplanev1.WaitingForMachineReason,
				Message: "Handing Machine " + machine.Name + " its configuration, to bootstrap etcd on it"}
		}
	}

	return decideBootstrap(facts)
}

// waitForNode waits for a node that has not said whether it has etcd data, or
// nil when it has nothing to wait for.
func waitForNode(machine MachineFacts) *Decision {
	wait := func(message string) *Decision {
		return &Decision{Action: WaitForMachine, Machine: machine.Name, Reason: controlplanev1.WaitingForMachineReason, Message: message}
	}
	switch {
	case !machine.Provisioned || machine.ProviderID == "":
		return wait("Waiting for Machine " + machine.Name + " to be provisioned")
	case !machine.Answers:
		return wait("Waiting for the node of Machine " + machine.Name + " to answer through the Talos API")
	case machine.EtcdData == health.EtcdDataUnknown:
		return wait("Waiting for the node of Machine " + machine.Name + " to tell whether it has etcd data")
	default:
		return nil
	}
}

// decideBootstrap is about etcd when every control plane node has answered that
// it has no etcd data.
func decideBootstrap(facts Facts) *Decision {
	if waiting := waitForSilence(facts); waiting != nil {
		return waiting
	}
	if facts.Override != "" {
		return decideOverride(facts)
	}

	return decideTarget(facts)
}

// waitForSilence waits until nothing answers at the endpoint; nil when nothing does.
func waitForSilence(facts Facts) *Decision {
	switch facts.APIServer {
	case health.APIServerUnknown:
		return &Decision{Action: WaitForEndpointSilence, Reason: controlplanev1.WaitingForCertificatesReason,
			Message: "Waiting for the kubeconfig of the cluster, to look at the control plane endpoint before etcd is bootstrapped"}
	case health.APIServerUntrusted, health.APIServerNotReady, health.APIServerReady:
		wait := &Decision{Action: WaitForEndpointSilence, Reason: controlplanev1.EndpointInUseReason,
			Message: "Something answers at the control plane endpoint though no control plane node has etcd data; etcd is not bootstrapped beside it; see to it that nothing answers there"}
		if !facts.Initialized && facts.Restore.Restore == "" {
			wait.Message += ", or make a Cluster with another endpoint"
		}
		return wait
	case health.APIServerSilent:
	}

	return nil
}

// decideTarget is about the Machine on which etcd may be bootstrapped.
func decideTarget(facts Facts) *Decision {
	target := bootstrapTarget(facts.staying())
	switch {
	case target == nil:
		return decideNoTarget(facts)
	case facts.Intent == nil && !facts.Initialized:
		return &Decision{Action: RecordBootstrapIntent, Machine: target.Name, Reason: controlplanev1.WaitingForEtcdReason,
			Message: "Bootstrapping etcd on Machine " + target.Name}
	case facts.Intent == nil || facts.Intent.Restore != "" || facts.Intent.Bootstrapped && (facts.Initialized || !facts.IntentWiped):
		return &Decision{Action: WaitForOverride, Reason: controlplanev1.EtcdDataLostReason,
			Message: "etcd was bootstrapped before and no control plane node has its data any more; to give the data up, name a Machine in the annotation " +
				controlplanev1.BootstrapOverrideAnnotation}
	}
	if machine := facts.intended(); machine != nil {
		return bootstrapOn(*machine)
	}
	if facts.IntentWiped {
		return &Decision{Action: RecordBootstrapIntent, Machine: target.Name, Reason: controlplanev1.WaitingForEtcdReason,
			Message: "Bootstrapping etcd on Machine " + target.Name + ", because nothing is left of Machine " + facts.Intent.Name}
	}

	return intentElsewhere(*facts.Intent)
}

// intended is the Machine in the intent that is recorded; nil when it is not there, or
// goes.
func (f Facts) intended() *MachineFacts {
	staying := f.staying()
	i := slices.IndexFunc(staying, func(machine MachineFacts) bool {
		return !machine.Held && f.Intent != nil && f.Intent.Name == machine.Name && f.Intent.ProviderID == machine.ProviderID
	})
	if i < 0 {
		return nil
	}

	return &staying[i]
}

// bootstrapOn bootstraps etcd on a Machine, once: each call stops what the last one has
// started.
func bootstrapOn(machine MachineFacts) *Decision {
	if machine.Bootstrapping {
		return &Decision{Action: WaitForEtcd, Machine: machine.Name, Reason: controlplanev1.WaitingForEtcdReason,
			Message: "Waiting for etcd to start on Machine " + machine.Name + ", whose node was asked to bootstrap it"}
	}

	return &Decision{Action: Bootstrap, Machine: machine.Name, Reason: controlplanev1.WaitingForEtcdReason,
		Message: "Bootstrapping etcd on Machine " + machine.Name}
}

// decideStopped restarts the node in the intent when its etcd has data and was stopped
// before anybody has seen it run: a bootstrap that Talos has to give up leaves it so.
func decideStopped(facts Facts) *Decision {
	machine := facts.intended()
	if machine == nil || !machine.Answers || machine.EtcdData != health.EtcdDataPresent || !machine.EtcdStopped || machine.Restarting {
		return nil
	}

	return &Decision{Action: RestartNode, Machine: machine.Name, Reason: controlplanev1.WaitingForEtcdReason,
		Message: "Restarting the node of Machine " + machine.Name + ": its etcd was stopped while it was bootstrapped, and starts at the next boot only"}
}

// decideNoTarget is about Machines that are all held back, and of which none may take
// the place of the first.
func decideNoTarget(facts Facts) *Decision {
	if facts.Intent != nil && !facts.Initialized {
		return intentElsewhere(*facts.Intent)
	}

	return &Decision{Action: WaitForOverride, Reason: controlplanev1.EtcdDataLostReason,
		Message: "All control plane Machines wait to join an etcd cluster, and there is none; to begin a new one, name a Machine in the annotation " +
			controlplanev1.BootstrapOverrideAnnotation}
}

// intentElsewhere waits for a person, because nobody knows what is left of the
// Machine in the intent.
func intentElsewhere(intent controlplanev1.BootstrapIntent) *Decision {
	return &Decision{Action: WaitForOverride, Reason: controlplanev1.BootstrapIntentStaleReason,
		Message: "etcd was to be bootstrapped on Machine " + intent.Name + ", which is not there any more; to bootstrap it elsewhere, name a Machine in the annotation " +
			controlplanev1.BootstrapOverrideAnnotation}
}

// decideOverride is about a bootstrap that a person allows on a named Machine.
func decideOverride(facts Facts) *Decision {
	for _, machine := range facts.staying() {
		if machine.Name == facts.Override {
			return &Decision{Action: RecordBootstrapIntent, Machine: machine.Name, Reason: controlplanev1.WaitingForEtcdReason,
				Message: "Bootstrapping etcd on Machine " + machine.Name}
		}
	}

	return &Decision{Action: WaitForOverride, Reason: controlplanev1.BootstrapIntentStaleReason,
		Message: "The annotation " + controlplanev1.BootstrapOverrideAnnotation + " names a Machine that is not a control plane Machine of this cluster"}
}

// bootstrapTarget is the first Machine that has a configuration; nil when there
// is none.
func bootstrapTarget(machines []MachineFacts) *MachineFacts {
	for i := range machines {
		if !machines[i].Held {
			return &machines[i]
		}
	}

	return nil
}

// decideRunningEtcd is about etcd when at least one node has its data. It
// returns nil once it is recorded that etcd runs and the API server has
// answered.
func decideRunningEtcd(facts Facts) *Decision {
	if facts.Intent == nil || !facts.Intent.Bootstrapped {
		for _, machine := range facts.Machines {
			if machine.Answers && machine.MemberProblem == "" {
				return &Decision{Action: RecordBootstrapped, Machine: bootstrappedMachine(facts), Reason: controlplanev1.WaitingForAPIServerReason,
					Message: "Waiting for the API server to answer at the control plane endpoint"}
			}
		}

		if stopped := decideStopped(facts); stopped != nil {
			return stopped
		}

		return decideNodes(facts)
	}
	if !facts.Initialized {
		if waiting := decideNodes(facts); waiting != nil {
			return waiting
		}
		return waitForAPIServer(facts.APIServer)
	}

	return nil
}

// waitForAPIServer waits for the API server to answer for the first time.
func waitForAPIServer(present health.APIServerState) *Decision {
	message := "Waiting for the API server to answer at the control plane endpoint"
	switch present {
	case health.APIServerUntrusted:
		message = "What answers at the control plane endpoint is no API server of this cluster; point the endpoint at the control plane machines, with nothing that ends TLS in between"
	case health.APIServerNotReady:
		message = "Waiting for the API server to become ready, which answers at the control plane endpoint"
	case health.APIServerUnknown, health.APIServerSilent, health.APIServerReady:
	}

	return &Decision{Action: WaitForAPIServer, Reason: controlplanev1.WaitingForAPIServerReason, Message: message}
}

// decideNodes waits for nodes that do not answer, or whose etcd member is not
// up.
func decideNodes(facts Facts) *Decision {
	for _, machine := range facts.staying() {
		if machine.Held {
			continue
		}
		if waiting := waitForNode(machine); waiting != nil {
			return waiting
		}
		if machine.MemberProblem != "" {
			return &Decision{Action: WaitForEtcd, Machine: machine.Name, Reason: controlplanev1.WaitingForEtcdReason,
				Message: "Waiting for etcd on Machine " + machine.Name + ": " + machine.MemberProblem}
		}
	}

	return nil
}

// bootstrappedMachine is the Machine to name in the record that etcd runs: the
// one named already, when it is there, else one that has etcd data, else one that
// has a host.
func bootstrappedMachine(facts Facts) string {
	for _, fits := range []func(MachineFacts) bool{
		func(m MachineFacts) bool {
			return facts.Intent != nil && facts.Intent.Name == m.Name && facts.Intent.ProviderID == m.ProviderID
		},
		func(m MachineFacts) bool { return m.ProviderID != "" && m.EtcdData == health.EtcdDataPresent },
		func(m MachineFacts) bool { return m.ProviderID != "" },
	} {
		if i := slices.IndexFunc(facts.Machines, fits); i >= 0 {
			return facts.Machines[i].Name
		}
	}

	return facts.Machines[0].Name
}
