// Package manual writes manual pages in the language of man(7): those of commands, and weir.yaml(5), which
// it makes of docs/reference/configuration.md.
package manual

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// Page is a manual page. What its methods write begins and ends with a line's.
type Page struct{ strings.Builder }

// Section begins a section.
func (p *Page) Section(title string) { p.lines(".SH " + title) }

// Paragraph is a paragraph of a section.
func (p *Page) Paragraph(text string) { p.lines(".PP", text) }

// Term is an entry of a list of terms, with what the page says of it.
func (p *Page) Term(term, text string) { p.lines(".TP", term, text) }

// Item is an entry of a list.
func (p *Page) Item(text string) { p.lines(`.IP \(bu 2`, text) }

// Example shows text as it is, with its line breaks.
func (p *Page) Example(text string) { p.lines(".EX", text, ".EE") }

func (p *Page) lines(lines ...string) {
	for _, line := range lines {
		p.WriteString(line + "\n")
	}
}

// Help writes the text of a help: paragraphs, and lines that are indented, which stay lines.
func (p *Page) Help(text string) {
	for paragraph := range strings.SplitSeq(text, "\n\n") {
		p.lines(".PP")
		for line := range strings.SplitSeq(paragraph, "\n") {
			kept := strings.TrimLeft(line, " \t")
			if kept != line {
				p.lines(".br")
			}
			p.lines(Literal(kept))
		}
	}
}

// Bold and Italic take text that is escaped.
func Bold(text string) string { return `\fB` + text + `\fR` }

// Italic is for what a reader replaces.
func Italic(text string) string { return `\fI` + text + `\fR` }

// Literal escapes text with what a reader types: a hyphen is a minus, quotes are those of a keyboard.
func Literal(text string) string {
	return notRequest(strings.NewReplacer(`\`, `\e`, "-", `\-`, "`", `\(ga`, "^", `\(ha`, "~", `\(ti`).Replace(text))
}

// Prose escapes text whose hyphens and quotes man(7) may typeset.
func Prose(text string) string { return notRequest(strings.ReplaceAll(text, `\`, `\e`)) }

// notRequest escapes what would be a request at the beginning of a line.
func notRequest(text string) string {
	if strings.HasPrefix(text, ".") || strings.HasPrefix(text, "'") {
		return `\&` + text
	}
	return text
}

// Date is the date of pages, SOURCE_DATE_EPOCH where that is set: two builds of one commit have to write
// the same.
func Date() (time.Time, error) {
	text := os.Getenv("SOURCE_DATE_EPOCH")
	if text == "" {
		return time.Now().UTC(), nil
	}
	seconds, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return time.Time{}, fmt.Errorf("read SOURCE_DATE_EPOCH: %q is not a number of seconds", text)
	}
	return time.Unix(seconds, 0).UTC(), nil
}
