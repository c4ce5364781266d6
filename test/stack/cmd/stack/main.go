// The stack program builds, starts and shows the development stack.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/go-logr/logr"
	"google.golang.org/grpc/grpclog"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/capi-talos/capi-talos/test/stack/parts"
)

func main() {
	// The libraries of controllers log; what they do here, the steps tell.
	ctrl.SetLogger(logr.Discard())
	grpclog.SetLoggerV2(grpclog.NewLoggerV2(io.Discard, io.Discard, io.Discard))
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// The first Ctrl-C cleans up, the second one ends the program at once.
	context.AfterFunc(ctx, stop)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintf(os.Stderr, "stack: %v\n", err)
		os.Exit(1)
	}
}

const usage = `usage: stack <command>
  parts [name ...]   build the named parts of the test bed (default: all) and print where they are
  demo               run the main job from end to end; MODE=metal and FLEET=sim say on
                     what, KEEP=1 leaves it running
  bench-main         measure the main job beside its floor, and the managers; FLEET says
                     on what, ROUNDS how often
  dev-up             raise the development stack, and leave it there
  dev-down           take it down
  dev-deploy <folder> <program>
                     put a provider's manager into it
  tilt [args ...]    run Tilt on it; TILT is one to take instead of ours`

func run(ctx context.Context, args []string) error {
	if len(args) == 0 {
		return fmt.Errorf("no command given\n%s", usage)
	}
	switch args[0] {
	case "parts":
		return buildParts(ctx, args[1:])
	case "demo":
		return runDemo(ctx)
	case "bench-main":
		return runBench(ctx)
	case "dev-up":
		return devUp(ctx)
	case devServe:
		return devKeep(ctx)
	case "dev-down":
		return devDown(ctx)
	case "dev-deploy":
		return devDeploy(ctx, args[1:])
	case "tilt":
		return runTilt(ctx, args[1:])
	default:
		return fmt.Errorf("unknown command %q\n%s", args[0], usage)
	}
}

func buildParts(ctx context.Context, names []string) error {
	if len(names) == 0 {
		for _, part := range parts.Table() {
			names = append(names, part.Name)
		}
	}
	built, err := parts.Ensure(ctx, parts.Print(os.Stderr), names...)
	if err != nil {
		return err
	}
	for _, name := range names {
		fmt.Printf("%s\t%s\n", name, built.Dir(name))
	}
	return nil
}
