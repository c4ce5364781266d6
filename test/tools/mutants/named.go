package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// readNamed reads a file of named mutants, which have an empty line between each
// other: what the change means, after #; the file; the old text, after -; the new one,
// after +. The old text has to be in the file, once.
func readNamed(root, list string) ([]mutant, error) {
	raw, err := os.ReadFile(list)
	if err != nil {
		return nil, fmt.Errorf("reading the named mutants: %w", err)
	}
	var mutants []mutant
	var failures []error
	for block := range strings.SplitSeq(strings.TrimSpace(string(raw)), "\n\n") {
		m, err := parseNamed(root, block)
		if err != nil {
			failures = append(failures, fmt.Errorf("reading the named mutant %q: %w", m.meaning, err))
		}
		mutants = append(mutants, m)
	}

	return mutants, errors.Join(failures...)
}

func parseNamed(root, block string) (mutant, error) {
	var m mutant
	var meaning, before, after []string
	for line := range strings.Lines(block) {
		line = strings.TrimRight(line, "\n")
		switch {
		case strings.HasPrefix(line, "#"):
			meaning = append(meaning, strings.TrimSpace(line[1:]))
		case strings.HasPrefix(line, "-"):
			before = append(before, line[1:])
		case strings.HasPrefix(line, "+"):
			after = append(after, line[1:])
		case strings.TrimSpace(line) != "":
			m.file = line
		}
	}
	m.meaning = strings.Join(meaning, " ")
	old := strings.Join(before, "\n")
	if m.meaning == "" || m.file == "" || old == "" {
		return m, errors.New("it lacks its meaning, its file or its old text")
	}
	var err error
	if m.source, err = os.ReadFile(filepath.Join(root, m.file)); err != nil {
		return m, err
	}
	if n := bytes.Count(m.source, []byte(old)); n != 1 {
		return m, fmt.Errorf("its old text is %d times in %s, and has to be there once:\n%s", n, m.file, old)
	}
	m.start = bytes.Index(m.source, []byte(old))
	m.end, m.text = m.start+len(old), strings.Join(after, "\n")

	return m, nil
}
