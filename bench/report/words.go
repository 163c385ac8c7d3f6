package report

import (
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"weir.io/weir/lab/record"
)

// only returns the conditions with these names.
func only(row record.Conditions, keys []string) record.Conditions {
	some := record.Conditions{}
	for _, key := range keys {
		if value, found := row[key]; found {
			some[key] = value
		}
	}
	return some
}

// named writes conditions for people: "family ipv4, frame 64".
func named(row record.Conditions) string {
	var words []string
	for _, key := range slices.Sorted(maps.Keys(row)) {
		words = append(words, key+" "+row[key])
	}
	return strings.Join(words, ", ")
}

// label writes the values of these conditions: numbers with their names.
func label(row record.Conditions, keys []string) string {
	var words []string
	for _, key := range keys {
		value, found := row[key]
		if _, err := strconv.ParseFloat(value, 64); found && err == nil {
			value = value + " " + key
		}
		if value != "" {
			words = append(words, value)
		}
	}
	return strings.Join(words, ", ")
}

// timeAxis is the condition that is a time.
const timeAxis = "second"

// axisTitle says what a condition is, with its unit if it has one.
func axisTitle(key string) string {
	switch key {
	case "frame":
		return "frame (bytes)"
	case timeAxis:
		return "time (s)"
	}
	return key
}

var notInNames = regexp.MustCompile(`[^a-z0-9]+`)

func slug(words ...string) string {
	return strings.Trim(notInNames.ReplaceAllString(strings.ToLower(strings.Join(words, "-")), "-"), "-")
}

// absent is the cell of a missing measurement.
const absent = "-"

// thousands separates the digits of a large whole number: 1,000,000.
func thousands(text string) string {
	if _, err := strconv.ParseUint(text, 10, 64); err != nil || len(text) < 5 {
		return text
	}
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

func orAbsent(text string) string {
	if text == "" {
		return absent
	}
	return text
}

// escaped is plain text escaped for markdown; "<=" needs no escape.
func escaped(text string) string {
	return tag.ReplaceAllString(strings.ReplaceAll(text, "\n", " "), "&lt;$1")
}

var tag = regexp.MustCompile(`<([a-zA-Z/!])`)

func sentence(text string) string {
	return strings.TrimSuffix(capital(text), ".") + "."
}

func capital(text string) string {
	if text == "" {
		return ""
	}
	return strings.ToUpper(text[:1]) + text[1:]
}
