package manual

import (
	"fmt"
	"regexp"
	"strings"
	"time"
)

// Configuration makes weir.yaml(5) of docs/reference/configuration.md, so that the keys are described once.
func Configuration(document, version string, date time.Time) ([]byte, error) {
	body, found := strings.CutPrefix(document, "# Configuration\n")
	if !found {
		return nil, fmt.Errorf("the document does not begin with %q", "# Configuration")
	}
	var p configuration
	p.lines(".nh", fmt.Sprintf(".TH weir.yaml 5 %q %q %q", date.Format(time.DateOnly), "weir "+version, "weir"))
	p.chapter("NAME")
	p.lines(`weir.yaml \- configuration of weir's directors and agents`)
	p.last = paragraph
	p.chapter("DESCRIPTION")
	if err := p.document(body); err != nil {
		return nil, err
	}
	p.chapter("FILES")
	p.lines("/etc/weir/weir.yaml")
	p.last = paragraph
	p.chapter("SEE ALSO")
	p.lines(`\fBweir(1)\fP, \fBweir-run(1)\fP, \fBweir-agent(1)\fP`)
	return []byte(p.String()), nil
}

// configuration is weir.yaml(5) while it is written.
type configuration struct {
	Page
	last block
}

type block int

const (
	title block = iota
	paragraph
	item
	term
	example
)

// begin separates two blocks by an empty line. There is none below a title, between a paragraph and its
// list, and between the items of a list.
func (p *configuration) begin(next block) {
	isList := next == item || next == term
	if p.last != title && !(isList && p.last == paragraph) && !(next == item && p.last == item) {
		p.lines("")
	}
	p.last = next
}

func (p *configuration) chapter(name string) {
	p.begin(title)
	p.lines("")
	p.Section(name)
}

// document writes what is below the document's title. Tables become lists of terms, because a terminal is
// too narrow for them.
func (p *configuration) document(body string) error {
	var columns []string // of the table that is open
	var lines []string   // those of the example that is open
	open := false
	for i, line := range strings.Split(body, "\n") {
		if strings.HasPrefix(line, "```") {
			if open {
				p.begin(example)
				p.Example(strings.Join(lines, "\n"))
			}
			open, lines = !open, nil
			continue
		}
		if open {
			lines = append(lines, Prose(line))
			continue
		}
		if !strings.HasPrefix(line, "|") {
			columns = nil
		}
		if err := p.line(line, &columns); err != nil {
			return fmt.Errorf("line %d of the document: %w", i+2, err)
		}
	}
	if open {
		return fmt.Errorf("the document's last example has no end")
	}
	return nil
}

// line writes a line that is not of an example. Each paragraph, item and row is one line.
func (p *configuration) line(line string, columns *[]string) error {
	switch {
	case line == "":
	case strings.HasPrefix(line, "## "):
		p.chapter(name(line[3:]))
	case strings.HasPrefix(line, "### "):
		p.begin(title)
		p.Section(name(line[4:]))
	case strings.HasPrefix(line, "- "):
		text, err := marked(line[2:])
		if err != nil {
			return err
		}
		p.begin(item)
		p.Item(text)
	case strings.HasPrefix(line, "    ") && p.last == item: // another paragraph of the item
		text, err := marked(line[4:])
		if err != nil {
			return err
		}
		p.lines("", text)
	case strings.HasPrefix(line, "|"):
		cells := cellsOf(line)
		if *columns == nil {
			*columns = cells
			return nil
		}
		if strings.Trim(line, "|-: ") == "" {
			return nil // the line below the columns' names
		}
		key, err := marked(cells[0])
		if err != nil {
			return err
		}
		text, err := marked(definition(*columns, cells))
		if err != nil {
			return err
		}
		p.begin(term)
		p.Term(key, text)
	case notParagraph.MatchString(line):
		return fmt.Errorf("the page cannot have %q", line)
	default:
		text, err := marked(line)
		if err != nil {
			return err
		}
		below := p.last == title
		p.begin(paragraph)
		if below {
			p.lines(text)
		} else {
			p.Paragraph(text)
		}
	}
	return nil
}

var (
	notParagraph = regexp.MustCompile(`^(\s|#|>|[*+] |[0-9]+[.)] |---|===|: )`)
	toDocument   = regexp.MustCompile(`\[([^][]+)\]\([^)]*\)`)
	mark         = regexp.MustCompile("`[^`]+`|\\*\\*[^*`]+\\*\\*")
	otherMark    = regexp.MustCompile("[*`<\\\\]|!?\\[[^]]*\\]\\(|(^|\\W)_")
)

// name is a title without code, which titles of pages do not have.
func name(text string) string { return Prose(strings.ReplaceAll(text, "`", "")) }

// marked writes a line with its code and its strong words in bold, and links as their text, because the
// documents are not beside the page.
func marked(line string) (string, error) {
	line = toDocument.ReplaceAllString(line, "$1")
	var b strings.Builder
	for line != "" {
		at := mark.FindStringIndex(line)
		if at == nil {
			at = []int{len(line), len(line)}
		}
		text, marked := line[:at[0]], line[at[0]:at[1]]
		if other := otherMark.FindString(text); other != "" {
			return "", fmt.Errorf("the page cannot have the mark %q in %q", other, text)
		}
		b.WriteString(Prose(text))
		switch {
		case strings.HasPrefix(marked, "`"):
			b.WriteString(Bold(Prose(strings.Trim(marked, "`"))))
		case marked != "":
			b.WriteString(`\fB` + Prose(strings.Trim(marked, "*")) + `\fP`)
		}
		line = line[at[1]:]
	}
	return b.String(), nil
}

func cellsOf(row string) []string {
	const bar = "\x00" // a bar that is part of a cell
	cells := strings.Split(strings.Trim(strings.ReplaceAll(row, `\|`, bar), "|"), "|")
	for i, cell := range cells {
		cells[i] = strings.TrimSpace(strings.ReplaceAll(cell, bar, "|"))
	}
	return cells
}

// definition is what a row says of its first cell.
func definition(columns, cells []string) string {
	text := ""
	for i := 1; i < len(cells) && i < len(columns); i++ {
		switch {
		case cells[i] == "":
		case i == 1:
			text = cells[i] + "."
		default:
			text += " " + strings.ToUpper(columns[i][:1]) + columns[i][1:] + ": " + cells[i] + "."
		}
	}
	return text
}
