// Package quickstart types the commands of a page of the documentation into a
// shell, in order, as its readers do.
package quickstart

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
)

// Block is one block of shell commands of a page.
type Block struct {
	// Line is the line of the page at which the commands begin.
	Line int
	// Heading is the heading above.
	Heading string
	// Commands are its lines.
	Commands string
}

const (
	fence     = "```"
	shellOpen = fence + "sh"
)

// Blocks are the blocks of a page that are marked as shell commands.
func Blocks(page []byte) ([]Block, error) {
	var (
		blocks  []Block
		heading string
		open    string
	)
	number := 0
	for line := range strings.Lines(string(page)) {
		number++
		text := strings.TrimRight(line, "\n")
		switch {
		case open == "" && strings.HasPrefix(text, "#"):
			heading = strings.TrimSpace(strings.TrimLeft(text, "#"))
		case open == "" && strings.HasPrefix(text, fence):
			open = text
			if open == shellOpen {
				blocks = append(blocks, Block{Line: number + 1, Heading: heading})
			}
		case text == fence:
			open = ""
		case open == shellOpen:
			blocks[len(blocks)-1].Commands += line
		}
	}
	if open != "" {
		return nil, errors.New("reading the blocks of a page: the last one does not end")
	}
	if len(blocks) == 0 {
		return nil, errors.New("reading the blocks of a page: there are no shell commands")
	}
	return blocks, nil
}

// Replacement is something that a page says, and what is typed in its place.
type Replacement struct {
	// Said is the text on the page, Typed what takes its place.
	Said, Typed string
	// Why says why it cannot be typed here.
	Why string
}

// Replace makes replacements. Each must be found in exactly one block, once, so that
// they never say other things than the page.
func Replace(blocks []Block, replacements []Replacement) ([]Block, error) {
	replaced := bytes.Buffer{}
	for _, block := range blocks {
		replaced.WriteString(block.Commands)
	}
	all := replaced.String()
	var failures []error
	for _, replacement := range replacements {
		if count := strings.Count(all, replacement.Said); count != 1 {
			failures = append(failures, fmt.Errorf("replacing %q, because %s: it is on the page %d times", replacement.Said, replacement.Why, count))
		}
	}
	if err := errors.Join(failures...); err != nil {
		return nil, err
	}
	changed := make([]Block, len(blocks))
	for i, block := range blocks {
		for _, replacement := range replacements {
			block.Commands = strings.Replace(block.Commands, replacement.Said, replacement.Typed, 1)
		}
		changed[i] = block
	}
	return changed, nil
}
