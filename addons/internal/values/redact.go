package values

import (
	"cmp"
	"encoding/base64"
	"fmt"
	"slices"
	"strings"
)

const (
	// hidden stands for a value.
	hidden = "***"
	// minSecret is how long a value of a Secret must be to be hidden, and minOther one of
	// somewhere else: shorter ones would hide words of the text.
	minSecret, minOther = 3, 8
)

// Hidden are values that must not be seen.
type Hidden struct {
	texts []string
}

// Hide adds the values of a part. A part that is no values has none.
func (h *Hidden) Hide(part Part, isSecret bool) {
	made, err := read(part)
	if err != nil {
		return
	}
	least := minOther
	if isSecret {
		least = minSecret
	}
	h.hide(made, least)
}

// HideSecret adds values any of which may have come from a Secret.
func (h *Hidden) HideSecret(values map[string]any) { h.hide(values, minSecret) }

func (h *Hidden) hide(values map[string]any, least int) {
	h.add(values, least)
	// Longer ones go first: they may contain others.
	slices.SortFunc(h.texts, func(a, b string) int { return cmp.Or(len(b)-len(a), cmp.Compare(a, b)) })
	h.texts = slices.Compact(h.texts)
}

func (h *Hidden) add(value any, least int) {
	switch value := value.(type) {
	case map[string]any:
		for _, below := range value {
			h.add(below, least)
		}
	case []any:
		for _, below := range value {
			h.add(below, least)
		}
	case nil, bool:
	default:
		if text := fmt.Sprint(value); len(text) >= least {
			h.texts = append(h.texts, text, base64.StdEncoding.EncodeToString([]byte(text)))
			// Messages quote what has several lines.
			if quoted := strings.Trim(fmt.Sprintf("%q", text), `"`); quoted != text {
				h.texts = append(h.texts, quoted)
			}
		}
	}
}

// In is a text without those values.
func (h *Hidden) In(text string) string {
	for _, value := range h.texts {
		text = strings.ReplaceAll(text, value, hidden)
	}

	return text
}
