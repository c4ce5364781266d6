package docker

import (
	"testing"

	. "github.com/onsi/gomega"
)

func TestPacketsReadsTheCounterOfTheBarrier(t *testing.T) {
	g := NewWithT(t)
	listing := `Chain DOCKER-USER (1 references)
    pkts      bytes target     prot opt in     out     source               destination
      17     1020 DROP       all  --  *      eth0    0.0.0.0/0            0.0.0.0/0            /* barrier-of-demo */
     100    60000 RETURN     all  --  *      *       0.0.0.0/0            0.0.0.0/0
`
	g.Expect(packets(listing, "barrier-of-demo")).To(Equal(17))
	_, err := packets(listing, "barrier-of-other")
	g.Expect(err).To(MatchError(ContainSubstring("gone")))
}
