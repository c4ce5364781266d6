package parts

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"k8s.io/utils/clock"
)

// Builder builds parts into a cache.
type Builder struct {
	// Table is what can be built.
	Table []Part
	// Cache is the folder that keeps what was built.
	Cache string
	// Modules is the folder that holds the wrapper modules.
	Modules string
	// Progress is told what happens.
	Progress Progress
	// Clock tells the time.
	Clock clock.WithTicker
}

// New returns a Builder of everything in Table.
func New(progress Progress) (*Builder, error) {
	cache, err := CacheDir()
	if err != nil {
		return nil, err
	}
	modules, err := modulesDir()
	if err != nil {
		return nil, err
	}
	return &Builder{
		Table:    Table(),
		Cache:    filepath.Join(cache, "parts"),
		Modules:  modules,
		Progress: progress,
		Clock:    clock.RealClock{},
	}, nil
}

// Ensure builds what is missing of the named parts, and of what they need, and
// tells where they are.
func Ensure(ctx context.Context, progress Progress, names ...string) (Built, error) {
	builder, err := New(progress)
	if err != nil {
		return nil, err
	}
	return builder.Ensure(ctx, names...)
}

// CacheDir is the folder for everything that the test bed keeps between runs:
// $CAPI_TALOS_CACHE, else capi-talos in the user's cache folder.
func CacheDir() (string, error) {
	if dir := os.Getenv("CAPI_TALOS_CACHE"); dir != "" {
		return filepath.Abs(dir)
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("finding the user's cache folder: %w", err)
	}
	return filepath.Join(dir, "capi-talos"), nil
}

// SourceDir is the root of the repository that this program was built from.
func SourceDir() (string, error) {
	modules, err := modulesDir()
	if err != nil {
		return "", err
	}
	return filepath.Join(modules, "..", "..", "..", ".."), nil
}

// modulesDir finds the wrapper modules: beside this source file, or, where the
// program was built with trimmed paths, in the repository around the working
// folder.
func modulesDir() (string, error) {
	if _, file, _, ok := runtime.Caller(0); ok && filepath.IsAbs(file) {
		if dir := filepath.Join(filepath.Dir(file), "modules"); isDir(dir) {
			return dir, nil
		}
	}
	dir, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("finding the working folder: %w", err)
	}
	for ; dir != filepath.Dir(dir); dir = filepath.Dir(dir) {
		if modules := filepath.Join(dir, "test", "stack", "parts", "modules"); isDir(modules) {
			return modules, nil
		}
	}
	return "", errors.New("finding the wrapper modules: run it inside the repository")
}

func isDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

// Ensure builds what is missing of the named parts, and of what they need, one
// after the other, and tells where they are. Several processes may do so at
// the same time with the same cache.
func (b *Builder) Ensure(ctx context.Context, names ...string) (Built, error) {
	plan, err := b.plan(ctx, names)
	if err != nil {
		return nil, err
	}
	built := Built{}
	for i, step := range plan {
		report := b.reporter(step.part, i+1, len(plan))
		if err := b.ensure(ctx, step, built, report); err != nil {
			return nil, fmt.Errorf("building part %s %s: %w", step.part.Name, step.part.Version, err)
		}
		built[step.part.Name] = step.target
	}
	return built, nil
}

// Missing lists those of the named parts, and of what they need, that are not
// in the cache.
func (b *Builder) Missing(ctx context.Context, names ...string) ([]string, error) {
	plan, err := b.plan(ctx, names)
	if err != nil {
		return nil, err
	}
	var missing []string
	for _, step := range plan {
		if !isDir(step.target) {
			missing = append(missing, step.part.Name)
		}
	}
	return missing, nil
}

type step struct {
	part   Part
	key    string
	target string
}

func (b *Builder) plan(ctx context.Context, names []string) ([]step, error) {
	wanted, err := find(b.Table, names)
	if err != nil {
		return nil, err
	}
	toolchain, err := toolchain(ctx)
	if err != nil {
		return nil, err
	}
	keys := map[string]string{}
	plan := make([]step, 0, len(wanted))
	for _, part := range wanted {
		key, err := key(part, b.Modules, toolchain, keys)
		if err != nil {
			return nil, err
		}
		keys[part.Name] = key
		plan = append(plan, step{part: part, key: key, target: filepath.Join(b.Cache, part.Name, part.Version+"-"+key)})
	}
	return plan, nil
}

// toolchain names the Go release and the platform that is built for.
func toolchain(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "go", "env", "GOVERSION", "GOOS", "GOARCH").Output()
	if err != nil {
		return "", fmt.Errorf("asking for the version of Go: %w", err)
	}
	return strings.Join(strings.Fields(string(out)), " "), nil
}

type reporter struct {
	clock    clock.WithTicker
	progress Progress
	event    Event
	start    time.Time
}

func (b *Builder) reporter(part Part, index, total int) *reporter {
	return &reporter{
		clock:    b.Clock,
		progress: b.Progress,
		event:    Event{Part: part.Name, Version: part.Version, Index: index, Total: total},
		start:    b.Clock.Now(),
	}
}

func (r *reporter) say(state State, packages int) {
	event := r.event
	event.State, event.Packages, event.Elapsed = state, packages, r.clock.Since(r.start)
	r.progress(event)
}

func (b *Builder) ensure(ctx context.Context, step step, needs Built, report *reporter) error {
	if isDir(step.target) {
		report.say(Cached, 0)
		return nil
	}
	folder := filepath.Dir(step.target)
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return fmt.Errorf("making its folder: %w", err)
	}
	unlock, err := b.lock(ctx, filepath.Join(folder, ".lock"), func() { report.say(Waiting, 0) })
	if err != nil {
		return err
	}
	defer unlock()
	if isDir(step.target) {
		report.say(Cached, 0)
		return nil
	}
	if err := sweep(folder); err != nil {
		return err
	}
	if err := b.build(ctx, step, needs, report); err != nil {
		report.say(Failed, 0)
		return err
	}
	report.say(Done, 0)
	return nil
}

// unfinished begins the names of folders of builds that go on or were killed.
const unfinished = ".unfinished-"

// sweep removes what killed builds of this part left behind. Its lock is held.
func sweep(folder string) error {
	left, err := filepath.Glob(filepath.Join(folder, unfinished+"*"))
	if err != nil {
		return fmt.Errorf("looking for unfinished builds: %w", err)
	}
	for _, dir := range left {
		if err := removeAll(dir); err != nil {
			return fmt.Errorf("removing an unfinished build: %w", err)
		}
	}
	return nil
}

// removeAll removes a folder also when folders in it are read-only, as copies
// of module sources are.
func removeAll(dir string) error {
	_ = filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() {
			_ = os.Chmod(path, 0o755)
		}
		return nil
	})
	return os.RemoveAll(dir)
}
