package machine

import (
	"os"
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"
)

func write(t *testing.T, name, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	NewWithT(t).Expect(os.WriteFile(path, []byte(content), 0o600)).To(Succeed())
	return path
}

func TestSysResource(t *testing.T) {
	for behaviour, test := range map[string]struct {
		status string
		want   bool
	}{
		"is there in the full set":            {status: "Name:\tx\nCapBnd:\t000001ffffffffff\n", want: true},
		"is missing where the bit is":         {status: "Name:\tx\nCapBnd:\t000001fffeffffff\n"},
		"counts as had where nothing is said": {status: "Name:\tx\n", want: true},
	} {
		t.Run(behaviour, func(t *testing.T) {
			g := NewWithT(t)
			g.Expect(look(write(t, "status", test.status), t.TempDir()).SysResource).To(Equal(test.want))
		})
	}
}

func TestCgroupV1(t *testing.T) {
	g, folder := NewWithT(t), t.TempDir()
	for _, name := range []string{"memory", "cpu", "unified"} {
		g.Expect(os.Mkdir(filepath.Join(folder, name), 0o755)).To(Succeed())
	}
	g.Expect(cgroupV1(folder)).To(Equal([]string{"cpu", "memory"}), "what is unified is no controller")
	g.Expect(os.WriteFile(filepath.Join(folder, "cgroup.controllers"), nil, 0o600)).To(Succeed())
	g.Expect(cgroupV1(folder)).To(BeEmpty(), "version 2 has folders, too")
}

func TestUplink(t *testing.T) {
	g := NewWithT(t)
	const head = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n"
	table := write(t, "route", head+
		"eth1\t00FEA8C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n"+
		"eth0\t00000000\t01FEA8C0\t0003\t0\t0\t0\t00000000\t0\t0\t0\n")
	g.Expect(uplink(table)).To(Equal("eth0"))
	_, err := uplink(write(t, "route", head))
	g.Expect(err).To(MatchError(ContainSubstring("there is none")))
}
