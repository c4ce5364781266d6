package world

import (
	"flag"
	"fmt"
	"os"
	"testing"
)

// long asks for tests that take many minutes; they are in packages of their own.
var long = flag.Bool("long", false, "run the tests that take many minutes")

// MainLong is Main for a package of such tests: without -long it says so, and
// runs none. Some of them measure, beside older revisions too, so that what makes Main's
// suites faster is left out.
func MainLong(m *testing.M, options Options, into *World) {
	flag.Parse()
	if !*long {
		fmt.Fprintln(os.Stdout, "not run: this takes many minutes, ask for it with -args -long (make test-scale)")
		return
	}
	start(m, options, into)
}
