package restore

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	backupv1 "github.com/capi-talos/capi-talos/backup/api/v1alpha1"
)

var now = time.Date(2026, 11, 26, 12, 0, 0, 0, time.UTC)

// wiped is a machine that was wiped for the attempt, and answers without data.
func wiped(name string) Machine { return Machine{Name: name, Wipe: WipeDone, Node: &Node{}} }

// voting is a machine whose etcd votes, since an hour ago.
func voting(name string) Machine {
	return Machine{Name: name, Wipe: WipeDone, Node: &Node{HasData: true, Votes: true, EtcdStarted: now.Add(-time.Hour)}}
}

// restarted is a machine whose etcd has come back.
func restarted(name string) Machine {
	machine := voting(name)
	machine.Restart = &backupv1.RestoreRestart{EtcdStarted: metav1.NewMicroTime(now.Add(-2 * time.Hour)), At: metav1.NewTime(now.Add(-2 * time.Hour))}

	return machine
}

func with(machine Machine, change func(*Machine)) Machine {
	if machine.Node != nil {
		node := *machine.Node
		machine.Node = &node
	}
	change(&machine)

	return machine
}

func TestNext(t *testing.T) {
	first := func(machines ...Machine) Facts { return Facts{Now: now, Attempt: 1, CanWipe: true, Machines: machines} }
	sent := func(machines ...Machine) Facts {
		return Facts{Now: now, Attempt: 1, CanWipe: true, Target: "cp-a", SentAt: now.Add(-time.Minute), Machines: machines}
	}
	last := func(facts Facts) Facts { facts.Attempt = MaxAttempts; return facts }
	late := func(facts Facts) Facts { facts.SentAt = now.Add(-time.Hour); return facts }
	up := func(machines ...Machine) Facts {
		return Facts{Now: now, Attempt: 1, CanWipe: true, Target: "cp-a", SentAt: now.Add(-time.Hour), Bootstrapped: true, Machines: machines}
	}
	going := func(m *Machine) { m.Deleting = true }
	silent := func(m *Machine) { m.Node = nil }
	unasked := func(m *Machine) { m.Wipe = WipeNotAsked }
	wiping := func(m *Machine) { m.Wipe, m.Node = WipeUnderWay, nil }
	hasData := func(m *Machine) { m.Node.HasData = true }
	etcd := func(version string) func(*Machine) { return func(m *Machine) { m.Node.EtcdVersion = version } }
	of := func(version string, facts Facts) Facts { facts.EtcdVersion = version; return facts }
	failed := func(m *Machine) { m.Node.EtcdFailed = true }
	asked := func(ago time.Duration) func(*Machine) {
		return func(m *Machine) {
			m.Restart = &backupv1.RestoreRestart{EtcdStarted: metav1.NewMicroTime(m.Node.EtcdStarted), At: metav1.NewTime(now.Add(-ago))}
		}
	}
	setBack := func(m *Machine) { m.Node.EtcdStarted = m.Restart.EtcdStarted.Add(-time.Hour) }
	learns := func(m *Machine) { m.Node.Votes = false }
	a, b, c := wiped("cp-a"), wiped("cp-b"), wiped("cp-c")
	va, vb, vc := voting("cp-a"), voting("cp-b"), voting("cp-c")
	for name, tc := range map[string]struct {
		facts    Facts
		step     Step
		machines []string
	}{
		"no machine":                       {first(), AwaitMachine, nil},
		"all are wiped at once":            {first(with(vb, unasked), with(va, unasked), with(vc, unasked)), WipeMachines, []string{"cp-a", "cp-b", "cp-c"}},
		"each is asked once":               {first(with(a, wiping), with(vb, unasked), c), WipeMachines, []string{"cp-b"}},
		"all are waited for":               {first(with(a, wiping), b, c), AwaitWipe, []string{"cp-a"}},
		"one that goes is waited for":      {first(a, with(vb, going), c), AwaitDeletion, []string{"cp-b"}},
		"one that goes is not wiped":       {first(with(with(vb, going), unasked), c), AwaitDeletion, []string{"cp-b"}},
		"all must answer":                  {first(a, with(b, silent), c), AwaitWipe, []string{"cp-b"}},
		"data of a lost attempt is wiped":  {first(a, with(b, hasData), with(c, silent)), Again, nil},
		"but not after the last attempt":   {last(first(a, with(b, hasData), c)), GiveUp, nil},
		"the first is sent it":             {first(c, b, a), Send, []string{"cp-a"}},
		"or the one with the oldest etcd":  {of("3.6.12", first(with(a, etcd("3.7.1")), with(b, etcd("3.6.14")), with(c, etcd("3.6.12")))), Send, []string{"cp-b"}},
		"none has too old an etcd":         {of("3.7.1", first(a, with(b, etcd("3.6.14")), c)), GiveUp, nil},
		"etcd is waited for":               {sent(a, b, c), AwaitEtcd, []string{"cp-a"}},
		"also while the node is silent":    {sent(with(a, silent), b, c), AwaitEtcd, []string{"cp-a"}},
		"one that came since is wiped":     {sent(a, b, with(vc, unasked)), WipeMachines, []string{"cp-c"}},
		"etcd fails":                       {sent(with(a, failed), b, c), Again, nil},
		"etcd of another one fails":        {sent(a, with(b, failed), c), AwaitEtcd, []string{"cp-a"}},
		"etcd does not come up":            {late(sent(a, b, c)), Again, nil},
		"it votes, and nobody says so yet": {late(sent(va, b, c)), AwaitEtcd, []string{"cp-a"}},
		"when it was sent is not known":    {func() Facts { f := sent(a, b, c); f.SentAt = time.Time{}; return f }(), AwaitEtcd, []string{"cp-a"}},
		"the node is gone":                 {sent(b, c), Again, nil},
		"the last attempt fails":           {last(sent(with(a, failed), b, c)), GiveUp, nil},
		"the last attempt takes long":      {last(late(sent(a, b, c))), GiveUp, nil},
		"machines of others are not wiped": {func() Facts { f := sent(with(a, failed)); f.CanWipe = false; return f }(), GiveUp, nil},
		"others join":                      {up(va, with(vb, learns), c), AwaitMembers, []string{"cp-b", "cp-c"}},
		"nothing is wiped any more":        {up(with(va, unasked), with(with(vb, unasked), silent)), AwaitMembers, []string{"cp-b"}},
		"one that goes is not waited":      {up(va, vb, with(with(vc, going), silent)), RestartNode, []string{"cp-b"}},
		"all go":                           {up(with(va, going)), AwaitMembers, nil},
		"the others restart first":         {up(va, vb, vc), RestartNode, []string{"cp-b"}},
		"one at a time":                    {up(va, with(vb, asked(time.Minute)), vc), AwaitRestart, []string{"cp-b"}},
		"its node is silent meanwhile":     {up(va, with(with(vb, asked(time.Minute)), silent), vc), AwaitRestart, []string{"cp-b"}},
		"it is asked once more":            {up(va, with(vb, asked(time.Hour)), vc), RestartNode, []string{"cp-b"}},
		"the next one":                     {up(va, restarted("cp-b"), vc), RestartNode, []string{"cp-c"}},
		"the first at last":                {up(va, restarted("cp-b"), restarted("cp-c")), RestartNode, []string{"cp-a"}},
		"not while another is not back":    {up(with(restarted("cp-a"), learns), with(vb, asked(time.Hour)), restarted("cp-c")), AwaitRestart, []string{"cp-a"}},
		"one that votes, and lost again":   {up(va, restarted("cp-b"), with(restarted("cp-c"), learns)), RestartNode, []string{"cp-c"}},
		"a clock that was set back":        {up(restarted("cp-a"), restarted("cp-b"), with(restarted("cp-c"), setBack)), Finish, nil},
		"it tells less than a record":      {up(restarted("cp-a"), restarted("cp-b"), with(vc, func(m *Machine) { asked(time.Minute)(m); m.Node.EtcdStarted = m.Node.EtcdStarted.Add(time.Nanosecond) })), AwaitRestart, []string{"cp-c"}},
		"when it was started is unknown":   {up(restarted("cp-a"), restarted("cp-b"), with(vc, func(m *Machine) { asked(time.Minute)(m); m.Node.EtcdStarted = time.Time{} })), AwaitRestart, []string{"cp-c"}},
		"a single one":                     {up(va), RestartNode, []string{"cp-a"}},
		"all have come back":               {up(restarted("cp-a"), restarted("cp-b"), restarted("cp-c")), Finish, nil},
	} {
		t.Run(name, func(t *testing.T) {
			g, decision := NewWithT(t), Next(tc.facts)
			g.Expect(decision.Step).To(Equal(tc.step))
			if tc.machines != nil {
				g.Expect(decision.Machines).To(Equal(tc.machines))
			}
			g.Expect(decision.Failure == "").To(Equal(tc.step != Again && tc.step != GiveUp))
		})
	}
}
