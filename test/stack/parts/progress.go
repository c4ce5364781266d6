package parts

import (
	"fmt"
	"io"
	"sync"
	"time"
)

// State is what an Event tells about a part.
type State string

const (
	// Cached means that the part was there already.
	Cached State = "cached"
	// Waiting means that another process builds the part.
	Waiting State = "waiting for another process that builds it"
	// Building means that the build goes on; it is repeated every few seconds.
	Building State = "building"
	// Done means that the part was built now.
	Done State = "built"
	// Failed means that the build failed.
	Failed State = "failed"
)

// Event is one step of the progress.
type Event struct {
	// Part and Version say what is built.
	Part, Version string
	// Index counts from 1 to Total.
	Index, Total int
	// State is what happens.
	State State
	// Packages is the number of Go packages compiled so far for this part.
	Packages int
	// Elapsed is the time since the work on the part began.
	Elapsed time.Duration
}

// Progress is told what happens. It is called by one goroutine at a time.
type Progress func(Event)

// Print returns a Progress that writes one line per event.
func Print(w io.Writer) Progress {
	var mu sync.Mutex
	return func(event Event) {
		mu.Lock()
		defer mu.Unlock()
		line := fmt.Sprintf("[%d/%d] %s %s: %s", event.Index, event.Total, event.Part, event.Version, event.State)
		switch event.State {
		case Building:
			line += fmt.Sprintf(", %d s", int(event.Elapsed.Seconds()))
			if event.Packages > 0 {
				line += fmt.Sprintf(", %d packages compiled", event.Packages)
			}
		case Done, Failed, Waiting:
			line += fmt.Sprintf(" (%.0f s)", event.Elapsed.Seconds())
		case Cached:
		}
		fmt.Fprintln(w, line)
	}
}

// Quiet is a Progress that says nothing.
func Quiet(Event) {}
