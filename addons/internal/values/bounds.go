package values

import (
	"reflect"
	"regexp"
	"strings"
)

const (
	// maxWork is how much a template may work, all in all: a call of a function and a round
	// of a loop count one each, and a call more where it has much to do.
	maxWork = 100_000
	// bytesPerWork is how many bytes of its arguments a call may have for one more.
	bytesPerWork = 1024
	// stepsPerWork is how many comparisons, or steps of a regular expression, count one.
	stepsPerWork = 1000
	// maxItems is how many items a list or map may have that a function makes.
	maxItems = 10_000
	// maxCount bounds the numbers from which functions make as much text or as many items.
	maxCount = 10_000
	// maxDepth is how many lists and maps may be in each other.
	maxDepth = 100
	// perItem is how many bytes an item counts beside its text.
	perItem = 8
	// perRepetition is how many characters of a regular expression a repetition counts: {n}
	// stands for up to so many of what it follows (regexp/syntax).
	perRepetition = 1000
	// perVerb is how many bytes a verb of a format may make beside its argument: formats
	// with wider ones are refused.
	perVerb = 1000
)

// counted are functions that make as much as a number among their arguments says.
var counted = map[string]bool{
	"repeat": true, "indent": true, "nindent": true, "until": true, "untilStep": true, "seq": true,
	"wrap": true, "wrapWith": true, "trunc": true, "abbrev": true, "abbrevboth": true,
}

// wideVerb is a verb of a format that is padded to more than perVerb, or to an argument.
var wideVerb = regexp.MustCompile(`%[^a-zA-Z%]*([0-9]{4}|\*)`)

// made says how many bytes a function makes at most, where that may be more than its
// arguments have together.
var made = map[string]func(arguments []any) int{
	"repeat":  func(a []any) int { return intOf(a[0]) * len(textOf(a[1])) },
	"indent":  func(a []any) int { return intOf(a[0]) * (1 + strings.Count(textOf(a[1]), "\n")) },
	"nindent": func(a []any) int { return intOf(a[0]) * (1 + strings.Count(textOf(a[1]), "\n")) },
	"replace": func(a []any) int { return (1 + strings.Count(textOf(a[2]), textOf(a[0]))) * len(textOf(a[1])) },
	"join":    func(a []any) int { return len(textOf(a[0])) * itemsOf(a[1]) },
	"wrapWith": func(a []any) int {
		return (1 + len(textOf(a[2]))) * len(textOf(a[1]))
	},
	"regexReplaceAll":            replacedByRegex,
	"mustRegexReplaceAll":        replacedByRegex,
	"regexReplaceAllLiteral":     replacedByRegex,
	"mustRegexReplaceAllLiteral": replacedByRegex,
	"printf": func(a []any) int {
		format := textOf(a[0])
		if wideVerb.MatchString(format) {
			return maxBytes + 1
		}
		return strings.Count(format, "%") * (perVerb + sizeOf(a[1], maxBytes))
	},
}

// replacedByRegex is how much a replacement by a regular expression makes: it may be put
// between all characters, and name what was found again and again.
func replacedByRegex(a []any) int { return (1 + len(textOf(a[1]))) * (1 + len(textOf(a[2]))) }

// steps says how many steps a function takes, where these are many more than its arguments
// have bytes.
var steps = map[string]func(arguments []any) int{
	"uniq":        func(a []any) int { return itemsOf(a[0]) * itemsOf(a[0]) },
	"mustUniq":    func(a []any) int { return itemsOf(a[0]) * itemsOf(a[0]) },
	"without":     func(a []any) int { return itemsOf(a[0]) * itemsOf(a[1]) },
	"mustWithout": func(a []any) int { return itemsOf(a[0]) * itemsOf(a[1]) },
}

// stepsOf is how many steps a call takes beside reading its arguments.
func stepsOf(name string, arguments []any) int {
	if known := steps[name]; known != nil {
		return known(arguments)
	}
	if strings.Contains(strings.ToLower(name), "regex") && len(arguments) > 1 {
		expression := textOf(arguments[0])
		return len(textOf(arguments[1])) * (len(expression) + perRepetition*strings.Count(expression, "{"))
	}

	return 0
}

func spend(budget *int, work int) error {
	if *budget -= work; *budget < 0 {
		return errTooMuch
	}

	return nil
}

// boundedFunction is a function that pays for its calls, and makes no value that is larger
// than values may be. It panics where there is too much, which text/template makes an error.
func boundedFunction(name string, function any, budget *int) any {
	value := reflect.ValueOf(function)
	kind := value.Type()

	return reflect.MakeFunc(kind, func(arguments []reflect.Value) []reflect.Value {
		given := make([]any, len(arguments))
		for i, argument := range arguments {
			given[i] = argument.Interface()
		}
		if err := pay(name, given, budget); err != nil {
			panic(err)
		}
		call := value.Call
		if kind.IsVariadic() {
			call = value.CallSlice
		}
		results := call(arguments)
		result := results[0].Interface()
		if sizeOf(result, maxBytes) > maxBytes || (textOf(result) == "" && itemsOf(result) > maxItems) {
			panic(errTooMuch)
		}
		return results
	}).Interface()
}

// pay takes of the budget what a call costs, unless it would make too much.
func pay(name string, arguments []any, budget *int) error {
	size := sizeOf(arguments, maxBytes)
	if size > maxBytes || (counted[name] && hasLargeNumber(arguments)) {
		return errTooMuch
	}
	if most := made[name]; most != nil && most(arguments) > maxBytes {
		return errTooMuch
	}

	return spend(budget, 1+size/bytesPerWork+stepsOf(name, arguments)/stepsPerWork)
}

func hasLargeNumber(value any) bool {
	found := reflect.ValueOf(value)
	switch {
	case !found.IsValid():
		return false
	case found.CanInt():
		return found.Int() > maxCount || found.Int() < -maxCount
	case found.Kind() == reflect.Slice:
		for i := range found.Len() {
			if hasLargeNumber(found.Index(i).Interface()) {
				return true
			}
		}
	}

	return false
}

// intOf is a number; 0 when it is none, or less.
func intOf(value any) int {
	number, _ := value.(int)

	return max(number, 0)
}

// textOf is a text; empty when it is none.
func textOf(value any) string {
	text, _ := value.(string)

	return text
}

// itemsOf is how many items a list or map has.
func itemsOf(value any) int {
	switch found := reflect.ValueOf(value); found.Kind() {
	case reflect.Slice, reflect.Array, reflect.Map:
		return found.Len()
	default:
		return 1
	}
}

// sizeOf is how many bytes a value takes where it is written out, or more than a limit.
func sizeOf(value any, limit int) int { return sizeBelow(reflect.ValueOf(value), limit, maxDepth) }

func sizeBelow(value reflect.Value, limit, depth int) int {
	if depth == 0 {
		return limit + 1
	}
	size := perItem
	switch value.Kind() {
	case reflect.Interface, reflect.Pointer:
		if value.IsNil() {
			return size
		}
		return sizeBelow(value.Elem(), limit, depth-1)
	case reflect.String:
		return size + value.Len()
	case reflect.Slice, reflect.Array:
		for i := 0; i < value.Len() && size <= limit; i++ {
			size += sizeBelow(value.Index(i), limit-size, depth-1)
		}
	case reflect.Map:
		for each := value.MapRange(); size <= limit && each.Next(); {
			size += sizeBelow(each.Key(), limit-size, depth-1)
			size += sizeBelow(each.Value(), limit-size, depth-1)
		}
	default:
	}

	return size
}
