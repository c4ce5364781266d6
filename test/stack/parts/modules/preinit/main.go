// The preinit program is the first process of a virtual machine: it loads the modules that
// Talos' own kernel has built in, and Debian's has not, and then becomes Talos' init.
package main

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// folder has the modules, and a file that lists them in their order.
const folder = "/preload/"

func main() {
	list, err := os.ReadFile(folder + "list")
	if err != nil {
		fmt.Println("preinit: reading the list of modules:", err)
	}
	for name := range strings.FieldsSeq(string(list)) {
		if err := load(folder + name); err != nil && !errors.Is(err, unix.EEXIST) {
			fmt.Printf("preinit: loading %s: %v\n", name, err)
		}
	}
	// What ends with the first process is the kernel: it says so itself.
	fmt.Println("preinit: starting Talos:", unix.Exec("/init.talos", []string{"/init"}, os.Environ()))
}

func load(path string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	return unix.FinitModule(int(file.Fd()), "", 0)
}
