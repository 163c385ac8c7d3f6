package config

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/token"
)

// byteOrderMark begins the files of some editors, and means nothing in UTF-8.
var byteOrderMark = []byte("\ufeff")

// checkText refuses what YAML allows nowhere (YAML 1.2.2, 5.1), but its readers silently replace or
// accept: bytes that are no UTF-8, and control characters.
func checkText(text []byte) *Error {
	for rest := text; len(rest) > 0; {
		r, size := utf8.DecodeRune(rest)
		problem := ""
		switch {
		case r == utf8.RuneError && size == 1:
			problem = fmt.Sprintf("has the byte %#02x, which is not UTF-8; save the file as UTF-8", rest[0])
		case r < ' ' && r != '\n' && r != '\r' && r != '\t' || r == 0x7f:
			problem = fmt.Sprintf("has the control character %U, which YAML does not allow", r)
		}
		if problem != "" {
			return &Error{Line: 1 + bytes.Count(text[:len(text)-len(rest)], []byte("\n")), Problem: problem}
		}
		rest = rest[size:]
	}
	return nil
}

// syntaxError says what in the text is not YAML, in the words of its authors.
func syntaxError(text []byte, err error) Error {
	var at yaml.Error
	if !errors.As(err, &at) || at.GetToken() == nil || at.GetToken().Position == nil {
		return Error{Problem: "is not YAML: " + err.Error()}
	}
	line, message := at.GetToken().Position.Line, at.GetMessage()
	lines := strings.Split(string(text), "\n")
	switch {
	case strings.Contains(message, "'\t'"):
		return Error{Line: line, Problem: "is indented by a tab; YAML indents by spaces"}
	case strings.Contains(message, "must be specified"), strings.Contains(message, "end token"):
		if open, ok := unclosed(text, line); ok {
			return open
		}
	case strings.Contains(message, "not allowed in this context"):
		if wrong, ok := indentationError(lines, line); ok {
			return wrong
		}
	case strings.Contains(message, "end character of"):
		return Error{Line: line, Problem: "begins a text with a quotation mark and does not end it"}
	case strings.Contains(message, "undefined alias name"):
		return Error{Line: line, Problem: "has an alias, *, without a name; for text write \"*\""}
	case strings.Contains(message, "reserved character"):
		return Error{Line: line, Problem: "is not YAML: " + message + "; for text put it in quotation marks"}
	}
	return Error{Line: line, Problem: "is not YAML: " + message}
}

// unclosed finds the bracket that is open where the reader gave up: one that was open before that
// line, if any, because that line would be read as part of it.
func unclosed(text []byte, line int) (Error, bool) {
	var open []*token.Token
	var before *token.Token
	for _, t := range lexer.Tokenize(string(text)) {
		if t.Position.Line > line {
			break
		}
		switch t.Type {
		case token.SequenceStartType, token.MappingStartType:
			open = append(open, t)
		case token.SequenceEndType, token.MappingEndType:
			if len(open) == 0 {
				return Error{}, false
			}
			first := open[len(open)-1]
			if (first.Type == token.SequenceStartType) != (t.Type == token.SequenceEndType) {
				return Error{Line: first.Position.Line, Problem: fmt.Sprintf(
					"opens with %s what line %d closes with %s", first.Value, t.Position.Line, t.Value)}, true
			}
			open = open[:len(open)-1]
		}
		if t.Position.Line < line {
			before = nil
			if len(open) > 0 {
				before = open[len(open)-1]
			}
		}
	}
	switch {
	case before != nil:
	case len(open) > 0:
		before = open[len(open)-1]
	default:
		return Error{}, false
	}
	kind, end := "a list", "]"
	if before.Type == token.MappingStartType {
		kind, end = "a mapping", "}"
	}
	return Error{Line: before.Position.Line, Problem: fmt.Sprintf("opens %s with %s that no %s closes", kind, before.Value, end)}, true
}

// indentationError says which line has a wrong indentation. The reader's line is the wrong one, or
// the one before it: a line that is indented deeper continues that one's value.
func indentationError(lines []string, line int) (Error, bool) {
	if line < 1 || line > len(lines) {
		return Error{}, false
	}
	if next := nextLine(lines, line); next > 0 && isKey(lines[next-1]) && keyColumn(lines[next-1]) > keyColumn(lines[line-1]) && hasValue(lines[line-1]) {
		return deeper(next, lines[next-1], line, lines[line-1]), true
	}
	if hasTwoKeys(lines[line-1]) {
		return Error{Line: line, Problem: "has two keys; write each on a line of its own"}, true
	}
	before := previousLine(lines, line)
	if before == 0 {
		return Error{}, false
	}
	here, there := keyColumn(lines[line-1]), keyColumn(lines[before-1])
	if here > there && hasValue(lines[before-1]) {
		return deeper(line, lines[line-1], before, lines[before-1]), true
	}
	for i := before; i > 0; i-- {
		other := lines[i-1]
		if isBlank(other) || indent(other) != indent(lines[line-1]) || isElement(other) == isElement(lines[line-1]) {
			continue
		}
		kinds := map[bool]string{true: "an element of a list", false: "a key"}
		return Error{Line: line, Problem: fmt.Sprintf("begins with %s where line %d begins with %s",
			kinds[isElement(lines[line-1])], i, kinds[isElement(other)])}, true
	}
	return Error{Line: line, Problem: fmt.Sprintf("is indented by %s, as no line above it", spaces(indent(lines[line-1])))}, true
}

func deeper(line int, text string, above int, other string) Error {
	return Error{Line: line, Problem: fmt.Sprintf("is indented by %s, deeper than the key of line %d (%s), which has its value already",
		spaces(keyColumn(text)), above, spaces(keyColumn(other)))}
}

func spaces(n int) string {
	if n == 1 {
		return "1 space"
	}
	return fmt.Sprintf("%d spaces", n)
}

func indent(line string) int { return len(line) - len(strings.TrimLeft(line, " ")) }

// keyColumn is where a line's key begins: after the dashes of the lists that it begins.
func keyColumn(line string) int {
	column := indent(line)
	for strings.HasPrefix(line[column:], "- ") {
		column++
		column += indent(line[column:])
	}
	return column
}

func isElement(line string) bool { return strings.HasPrefix(strings.TrimSpace(line)+" ", "- ") }

func isKey(line string) bool {
	line = strings.TrimSpace(line)
	return !strings.HasPrefix(line, "#") && (strings.Contains(line, ": ") || strings.HasSuffix(line, ":"))
}

// hasValue reports whether a line has a key and its value.
func hasValue(line string) bool {
	_, value, found := strings.Cut(line, ": ")
	value = strings.TrimSpace(value)
	return found && value != "" && !strings.HasPrefix(value, "#")
}

func hasTwoKeys(line string) bool {
	_, value, _ := strings.Cut(line, ": ")
	if quoted := strings.IndexAny(value, `"'#{[`); quoted >= 0 {
		value = value[:quoted]
	}
	return strings.Contains(value, ": ") || strings.HasSuffix(strings.TrimSpace(value), ":")
}

func nextLine(lines []string, line int) int {
	for i := line + 1; i <= len(lines); i++ {
		if !isBlank(lines[i-1]) {
			return i
		}
	}
	return 0
}

func previousLine(lines []string, line int) int {
	for i := line - 1; i > 0; i-- {
		if !isBlank(lines[i-1]) {
			return i
		}
	}
	return 0
}

func isBlank(line string) bool {
	line = strings.TrimSpace(line)
	return line == "" || strings.HasPrefix(line, "#")
}
