package judge

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// Row is one combination of patches and host, and what came of it.
type Row struct {
	// Name says what was combined.
	Name string
	// Mode is where the configuration is to run.
	Mode Mode
	// Refused is the message with which the combination was refused; empty when
	// there is a configuration.
	Refused string
	// Configuration is the rendered configuration. Of a refused row it is what
	// Talos itself makes of the patches; empty when we refuse by a rule of ours.
	Configuration []byte
}

// A file of rows has blocks that begin with a line "-- … --":
//
//	-- document 7 --            and the lines of a document
//	-- document 8 = 7 12 15 --  the first 12 lines of document 7, the lines that
//	                            follow, and document 7 from its line 15 on
//	-- row metal … --           a line with the numbers of its documents, before
//	                            it perhaps "refused: " and the message
//
// Key material is left out: ((1f3a…)) stands for the word of the file with the
// keys whose SHA-256 begins so.

// Parse reads a file of rows.
func Parse(file, keys []byte) ([]Row, error) {
	words := wordsOf(keys)
	documents := map[string][]string{}
	var rows []Row
	for _, block := range strings.Split("\n"+string(file), "\n-- ")[1:] {
		head, body, found := strings.Cut(block+"\n", " --\n")
		if !found {
			return nil, fmt.Errorf("the block %.40q has no end of its first line", block)
		}
		body = strings.TrimSuffix(body, "\n")
		kind, name, _ := strings.Cut(head, " ")
		switch kind {
		case "document":
			number, text, err := document(name, body, documents)
			if err != nil {
				return nil, fmt.Errorf("document %s: %w", name, err)
			}
			documents[number] = text
		case "row":
			row, err := rowOf(name, body, documents, words)
			if err != nil {
				return nil, fmt.Errorf("row %s: %w", name, err)
			}
			rows = append(rows, row)
		default:
			return nil, fmt.Errorf("a block is a document or a row, not %q", kind)
		}
	}

	return rows, nil
}

func document(name, body string, documents map[string][]string) (string, []string, error) {
	lines := strings.Split(body, "\n")
	if body == "" {
		lines = nil
	}
	fields := strings.Fields(name)
	if len(fields) == 1 {
		return fields[0], lines, nil
	}
	if len(fields) != 5 || fields[1] != "=" {
		return "", nil, errors.New("its head is not understood")
	}
	base := documents[fields[2]]
	head, errHead := strconv.Atoi(fields[3])
	tail, errTail := strconv.Atoi(fields[4])
	if errHead != nil || errTail != nil || head < 0 || tail < head+1 || tail > len(base)+1 {
		return "", nil, errors.New("it refers to lines that are not there")
	}
	text := append([]string{}, base[:head]...)
	text = append(text, lines...)

	return fields[0], append(text, base[tail-1:]...), nil
}

func rowOf(name, body string, documents map[string][]string, words map[string]string) (Row, error) {
	mode, name, _ := strings.Cut(name, " ")
	row := Row{Name: name, Mode: Mode(mode)}
	if message, refused := strings.CutPrefix(body, "refused: "); refused {
		row.Refused, body, _ = strings.Cut(message, "\n")
	}
	var configuration bytes.Buffer
	for number := range strings.FieldsSeq(body) {
		lines, found := documents[number]
		if !found {
			return Row{}, fmt.Errorf("document %s is not there", number)
		}
		fmt.Fprintf(&configuration, "---\n%s\n", strings.Join(lines, "\n"))
	}
	var err error
	row.Configuration = reference.ReplaceAllFunc(configuration.Bytes(), func(found []byte) []byte {
		word, known := words[string(found[2:len(found)-2])]
		if !known {
			err = fmt.Errorf("%s stands for nothing", found)
		}

		return []byte(word)
	})

	return row, err
}

var (
	reference = regexp.MustCompile(`\(\([0-9a-f]{8}\)\)`)
	keyWord   = regexp.MustCompile(`[A-Za-z0-9+/=.]{16,}`)
)

// wordsOf are the words of the file with the keys by how they are referred to.
func wordsOf(keys []byte) map[string]string {
	words := map[string]string{}
	for _, word := range keyWord.FindAllString(string(keys), -1) {
		sum := sha256.Sum256([]byte(word))
		words[hex.EncodeToString(sum[:4])] = word
	}

	return words
}
