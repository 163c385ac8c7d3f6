package config

import (
	"bytes"
	"fmt"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

// Bounds on a text, checked in its tokens before the YAML package makes a tree of them. That
// package has no bounds of its own: each of its nodes holds its path as text, so nesting costs
// memory by its square; it calls itself once for each level, each further key of a mapping, each
// anchor before an anchor and each document, until the stack overflows, which ends the process; and
// it moves all tokens after a missing value. No weir file comes near these bounds.
const (
	mostDepth     = 16      // mappings and lists in each other
	mostKeys      = 256     // of one mapping
	mostKey       = 128     // bytes of a key
	mostScalar    = 4096    // bytes of any other value
	mostMissing   = 1000    // values
	mostDocuments = 4       // marks, --- or ...
	mostPath      = 1 << 20 // bytes in the paths of nodes, and pathFactor more for each byte of the text
	pathFactor    = 16
)

// mostAliases bounds the aliases of a text, before tokens of 400 bytes are made of three characters each.
// Of the most that a director has, 65,536 services, each can have four.
const mostAliases = 1 << 18

// Bounds on a set that is not in the form that weir writes: the YAML package takes about 400
// bytes for a token.
const (
	mostSetText   = 16 << 20 // bytes
	mostSetMarks  = 2 << 20  // characters that begin or end a token
	mostSetTokens = 1 << 20
)

// parseTree makes the tree of a text that keeps the bounds. The text of a set comes from clients of the
// API, and has further bounds.
func parseTree(text []byte, set bool) (*ast.File, Errors) {
	if set {
		if wrong := looseSet(text); wrong != "" {
			return nil, Errors{{Problem: wrong}}
		}
	}
	if wrong := manyAliases(text); wrong != nil {
		return nil, Errors{*wrong}
	}
	tokens := lexer.Tokenize(string(text))
	if set && len(tokens) > mostSetTokens {
		return nil, Errors{{Problem: fmt.Sprintf("has %d words and marks, more than %d; %s", len(tokens), mostSetTokens, asWritten)}}
	}
	if wrong := bounded(tokens, len(text)); wrong != nil {
		return nil, Errors{*wrong}
	}
	// The decoder reports duplicate keys: it knows the path of the field.
	file, err := parser.Parse(tokens, 0, parser.AllowDuplicateMapKey())
	if err != nil {
		return nil, Errors{syntaxError(text, err)}
	}
	return file, nil
}

const asWritten = "a set of this size is sent as JSON in the form in which the API returns it"

// looseSet says why the text of a set is too large to give to the YAML package, or nothing.
func looseSet(text []byte) string {
	if len(text) > mostSetText {
		return fmt.Sprintf("has %d bytes, more than %d; %s", len(text), mostSetText, asWritten)
	}
	marks := 0
	for _, mark := range []byte("[]{},:-?&*!|>%#\"'\n") {
		marks += bytes.Count(text, []byte{mark})
	}
	if marks > mostSetMarks {
		return fmt.Sprintf("has %d marks, more than %d; %s", marks, mostSetMarks, asWritten)
	}
	return ""
}

// manyAliases refuses a text with too many marks that may begin aliases.
func manyAliases(text []byte) *Error {
	count := 0
	for i := range text {
		if text[i] != '*' || i+1 == len(text) || bytes.IndexByte([]byte("* \t\r\n,]}"), text[i+1]) >= 0 || i > 0 && bytes.IndexByte([]byte(" \t\r\n,[{"), text[i-1]) < 0 {
			continue
		}
		if count++; count > mostAliases {
			return &Error{Line: 1 + bytes.Count(text[:i], []byte("\n")), Problem: fmt.Sprintf("has an alias after %d others, which is the most", mostAliases)}
		}
	}
	return nil
}

// level is an open mapping or list.
type level struct {
	flow   bool // in brackets
	list   bool // in square brackets
	column int  // of what begins its elements, if it is not in brackets
	keys   int
	path   int  // bytes that it adds to the paths in it
	colon  bool // the current element has its value's colon
	empty  bool // the current element has nothing yet
}

// meter goes through tokens and measures what the tree of them would take.
type meter struct {
	levels    []level
	paths     int
	path      int // bytes of the path here
	run       int // anchors and tags before one value
	missing   int
	documents int
}

// bounded says which bound tokens exceed, or nothing.
func bounded(tokens token.Tokens, size int) *Error {
	var m meter
	for i, t := range tokens {
		problem := m.scalar(tokens, i)
		if problem == "" {
			problem = m.take(tokens, i)
		}
		if m.paths += m.path; problem == "" && m.paths > mostPath+pathFactor*size {
			problem = "has keys too long for so many values in each other"
		}
		switch {
		case problem != "":
		case len(m.levels) > mostDepth || m.run > mostDepth:
			problem = fmt.Sprintf("is nested more than %d deep", mostDepth)
		case m.missing > mostMissing:
			problem = fmt.Sprintf("is one of more than %d values that are missing", mostMissing)
		case m.documents > mostDocuments:
			problem = "begins a second document; a configuration is one"
		default:
			continue
		}
		return &Error{Line: t.Position.Line, Problem: problem}
	}
	return nil
}

// scalar says which bound a value or key exceeds.
func (m *meter) scalar(tokens token.Tokens, i int) string {
	switch size := len(tokens[i].Value); {
	case size > mostScalar:
		return fmt.Sprintf("is a value of %d bytes, more than %d", size, mostScalar)
	case size > mostKey && (isType(tokens, i+1, token.MappingValueType) || isType(tokens, i-1, token.MappingKeyType)):
		return fmt.Sprintf("is a key of %d bytes, more than %d", size, mostKey)
	}
	return ""
}

func isType(tokens token.Tokens, i int, t token.Type) bool {
	return i >= 0 && i < len(tokens) && tokens[i].Type == t
}

// take takes in one token, and says which bound its mapping exceeds.
func (m *meter) take(tokens token.Tokens, i int) string {
	t := tokens[i]
	named := isType(tokens, i-1, token.AnchorType) // an anchor's name
	switch t.Type {
	case token.AnchorType, token.TagType:
		m.run++
		return ""
	}
	if !named {
		m.run = 0
	}
	switch t.Type {
	case token.DocumentHeaderType, token.DocumentEndType:
		m.documents++
		m.leave(func(level) bool { return true })
	case token.MappingStartType, token.SequenceStartType:
		m.fill()
		m.enter(level{flow: true, list: t.Type == token.SequenceStartType, path: indexPath, empty: true})
	case token.MappingEndType, token.SequenceEndType:
		m.endElement()
		m.leave(func(l level) bool { return !l.flow })
		if n := len(m.levels); n > 0 {
			m.pop()
		}
	case token.CollectEntryType:
		m.endElement()
		if l := m.top(); l != nil {
			l.empty, l.colon = true, false
		}
	case token.SequenceEntryType:
		m.block(t.Position.Column, indexPath)
		m.absent(tokens, i, t.Position.Column)
	case token.MappingValueType, token.MappingKeyType:
		return m.key(tokens, i)
	default:
		m.fill()
	}
	return ""
}

// indexPath is what a list's element adds to a path, at most.
const indexPath = 10

// key takes in a key's mark.
func (m *meter) key(tokens token.Tokens, i int) string {
	t := tokens[i]
	column, size := t.Position.Column, 1
	if t.Type == token.MappingValueType && i > 0 {
		column, size = tokens[i-1].Position.Column, 1+len(tokens[i-1].Value)
	}
	l := m.top()
	if l == nil || !l.flow {
		m.block(column, size)
		l = m.top()
	}
	if l.flow {
		m.path += size - l.path
		l.path = size
	}
	if t.Type == token.MappingValueType {
		l.colon, l.empty = true, false
		l.keys++
		m.absent(tokens, i, column)
	}
	if l.keys > mostKeys && !l.list {
		return fmt.Sprintf("is in a mapping of more than %d keys", mostKeys)
	}
	return ""
}

// absent counts a missing value after the mark at i.
func (m *meter) absent(tokens token.Tokens, i, column int) {
	at := i + 1
	for isType(tokens, at, token.CommentType) {
		at++
	}
	if at >= len(tokens) {
		return
	}
	mark, next := tokens[i], tokens[at]
	outside := next.Position.Line > mark.Position.Line && next.Position.Column <= column
	// A list may begin in the column of the key that it is the value of.
	list := mark.Type == token.MappingValueType && next.Type == token.SequenceEntryType && next.Position.Column == column
	if outside && !list || next.Type == token.CollectEntryType || next.Type == token.MappingEndType || next.Type == token.SequenceEndType {
		m.missing++
	}
}

// endElement counts a key in brackets that has no value.
func (m *meter) endElement() {
	if l := m.top(); l != nil && l.flow && !l.list && !l.colon && !l.empty {
		m.missing++
	}
}

// fill notes that the current element has something.
func (m *meter) fill() {
	if l := m.top(); l != nil {
		l.empty = false
	}
}

// block notes an element of a mapping or list without brackets.
func (m *meter) block(column, path int) {
	if l := m.top(); l != nil && l.flow {
		return
	}
	m.leave(func(l level) bool { return !l.flow && l.column > column })
	l := m.top()
	if l == nil || l.flow || l.column < column {
		m.enter(level{column: column, path: path})
		return
	}
	m.path += path - l.path
	l.path = path
}

func (m *meter) top() *level {
	if len(m.levels) == 0 {
		return nil
	}
	return &m.levels[len(m.levels)-1]
}

func (m *meter) enter(l level) {
	m.levels = append(m.levels, l)
	m.path += l.path
}

func (m *meter) pop() {
	m.path -= m.top().path
	m.levels = m.levels[:len(m.levels)-1]
}

// leave closes levels, from the innermost on, while the condition holds for them.
func (m *meter) leave(while func(level) bool) {
	for len(m.levels) > 0 && while(*m.top()) {
		m.pop()
	}
}
