// Package tally counts by names what happens in a test.
package tally

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
)

// Counter counts by names. It may be used by many at the same time.
type Counter struct {
	mu    sync.Mutex
	found Counts
}

// Add counts one of a name.
func (c *Counter) Add(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.found == nil {
		c.found = Counts{}
	}
	c.found[name]++
}

// Counts are what was counted so far.
func (c *Counter) Counts() Counts {
	c.mu.Lock()
	defer c.mu.Unlock()

	return maps.Clone(c.found)
}

// Counts are how many there are of each name.
type Counts map[string]int

// Since are the counts that have grown, by how much.
func (c Counts) Since(before Counts) Counts {
	grown := Counts{}
	for name, count := range c {
		if count > before[name] {
			grown[name] = count - before[name]
		}
	}

	return grown
}

// Of are the counts of the names that are wanted.
func (c Counts) Of(wanted func(name string) bool) Counts {
	found := maps.Clone(c)
	maps.DeleteFunc(found, func(name string, _ int) bool { return !wanted(name) })

	return found
}

// Total is how many there are in all.
func (c Counts) Total() int {
	total := 0
	for _, count := range c {
		total += count
	}

	return total
}

// String names the largest first.
func (c Counts) String() string {
	var text []string
	for _, name := range slices.SortedFunc(maps.Keys(c), func(a, b string) int { return cmp.Or(c[b]-c[a], strings.Compare(a, b)) }) {
		text = append(text, fmt.Sprintf("%s %d", name, c[name]))
	}

	return fmt.Sprintf("%d (%s)", c.Total(), strings.Join(text, ", "))
}
