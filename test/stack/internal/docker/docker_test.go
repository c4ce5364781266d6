package docker

import (
	"testing"

	. "github.com/onsi/gomega"
)

func TestPacketsReadsTheCounterOfTheBarrier(t *testing.T) {
	g := NewWithT(t)
	listing := `Chain DOCKER-USER (1 references)
    pkts      bytes target     prot opt in     out     source               destination
      17     1020 DROP       all  --  *      eth0    0.0.0.0/0            0.0.0.0/0            /* capi-talos-barrier */
     100    60000 RETURN     all  --  *      *       0.0.0.0/0            0.0.0.0/0
`
	g.Expect(packets(listing)).To(Equal(17))
	_, err := packets("Chain DOCKER-USER (1 references)\n")
	g.Expect(err).To(MatchError(ContainSubstring("gone")))
}
