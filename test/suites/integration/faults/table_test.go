package faults

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"
	"time"
)

// outcome is how a cell ended.
type outcome struct {
	cell
	// why it failed; nil when it did not.
	why error
	// impossible is why it cannot be.
	impossible string
	// middle reports whether machines were coming and going when the managers died.
	middle bool
	// lost is true when it could not heal, and a condition said why.
	lost bool
	// took is from the fault to the end.
	took time.Duration
}

// table collects what the cells came to.
type table struct {
	mu   sync.Mutex
	rows []outcome
}

func (t *table) add(row outcome) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.rows = append(t.rows, row)
}

// result is the outcome in one cell of the table.
func (o outcome) result() string {
	switch {
	case o.impossible != "":
		return "impossible"
	case o.why != nil:
		return "FAILED"
	case o.lost:
		return fmt.Sprintf("%.0f, and told what is lost", o.took.Seconds())
	}
	return fmt.Sprintf("%.0f", o.took.Seconds())
}

// killed tells when the managers died.
func (o outcome) killed() string {
	if o.middle {
		return "in the middle"
	}
	return "before the fault went"
}

// seldomInTheMiddle is not nil when too many cells had nothing to do any more when the
// managers died: then they do not show what they are for. Of the whole matrix that is more
// than one in ten. Of a few cells more than one in three: when the managers die is a matter
// of what the other cells do, and two of eleven are nothing unusual where one in ten is.
func (t *table) seldomInTheMiddle() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	const most, mostOfFew, few = 10, 3, 50
	calm, part := 0, most
	if len(t.rows) < few {
		part = mostOfFew
	}
	for _, row := range t.rows {
		if row.impossible == "" && row.why == nil && !row.middle {
			calm++
		}
	}
	if calm*part > len(t.rows) {
		return fmt.Errorf("in %d of %d cells no machine came or went when the managers died", calm, len(t.rows))
	}
	return nil
}

// print writes fault by moment by replicas, and below it the reasons.
func (t *table) print(out io.Writer) {
	t.mu.Lock()
	defer t.mu.Unlock()
	order := map[string]int{}
	for i, fault := range faults() {
		order[fault.name] = i
	}
	for i, moment := range moments() {
		order[moment.name] = i
	}
	slices.SortFunc(t.rows, func(x, y outcome) int {
		return cmp.Or(cmp.Compare(order[x.fault.name], order[y.fault.name]), cmp.Compare(order[x.moment.name], order[y.moment.name]), cmp.Compare(x.replicas, y.replicas))
	})
	columns := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(columns, "FAULT\tMOMENT\tREPLICAS\tKILLED\tSECONDS UNTIL WELL")
	counts := map[string]int{}
	for _, row := range t.rows {
		fmt.Fprintf(columns, "%s\t%s\t%d\t%s\t%s\n", row.fault.name, row.moment.name, row.replicas, row.killed(), row.result())
		if row.middle {
			counts["middle"]++
		}
		switch {
		case row.impossible != "":
			counts["impossible"]++
		case row.why != nil:
			counts["failed"]++
		default:
			counts["passed"]++
		}
	}
	_ = columns.Flush()
	fmt.Fprintf(out, "%d of %d cells: %d passed, %d failed, %d impossible; the managers were killed while machines came or went in %d\n",
		len(t.rows), len(cells()), counts["passed"], counts["failed"], counts["impossible"], counts["middle"])
	for _, row := range t.rows {
		switch {
		case row.impossible != "":
			fmt.Fprintf(out, "%s is impossible: %s\n", row.name(), row.impossible)
		case row.why != nil:
			fmt.Fprintf(out, "%s: %s\n", row.name(), strings.ReplaceAll(row.why.Error(), "\n", "\n  "))
		}
	}
}

// write prints into a file.
func (t *table) write(path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("making the folder of the table: %w", err)
	}
	file, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("writing the table: %w", err)
	}
	t.print(file)
	return file.Close()
}
