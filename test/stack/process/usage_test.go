package process

import (
	"os"
	"testing"

	. "github.com/onsi/gomega"
)

func TestUsageIsRead(t *testing.T) {
	g := NewWithT(t)
	usage, err := parseUsage("Name:\tmanager\nVmPeak:\t 1290000 kB\nVmHWM:\t   65536 kB\nVmRSS:\t   32768 kB\nRssFile:\t   16384 kB\n",
		"4242 (a) name) S 1 4242 4242 0 -1 4194560 9 0 0 0 150 50 0 0 20 0 12 0 100 1 1")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(usage).To(Equal(Usage{ResidentMiB: 32, PeakMiB: 64, FileMiB: 16, CPUSeconds: 2}))

	mine, err := UsageOf(os.Getpid())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(mine.PeakMiB).To(BeNumerically(">", 1))
	_, err = UsageOf(-1)
	g.Expect(err).To(HaveOccurred())
	g.Expect(MachineCPUSeconds()).To(BeNumerically(">=", mine.CPUSeconds))
}
