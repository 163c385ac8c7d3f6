// Command configpage writes weir.yaml(5) from docs/reference/configuration.md, so that the keys are
// described once.
package main

import (
	"fmt"
	"io"
	"os"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/cpuguy83/go-md2man/v2/md2man"
)

func main() {
	if err := run(os.Args[1:], os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "configpage:", err)
		os.Exit(1)
	}
}

// run reads the document and writes the page of a version: configpage VERSION <DOCUMENT >PAGE.
func run(args []string, in io.Reader, out io.Writer) error {
	if len(args) != 1 {
		return fmt.Errorf("one argument is needed, the version, and not %d", len(args))
	}
	epoch, err := strconv.ParseInt(os.Getenv("SOURCE_DATE_EPOCH"), 10, 64)
	if err != nil {
		return fmt.Errorf("SOURCE_DATE_EPOCH has to be the seconds of the page's date: %w", err)
	}
	text, err := io.ReadAll(in)
	if err != nil {
		return fmt.Errorf("read the document: %w", err)
	}
	body, found := strings.CutPrefix(string(text), "# Configuration\n")
	if !found {
		return fmt.Errorf("the document does not begin with %q", "# Configuration")
	}
	title := fmt.Sprintf("%% weir.yaml 5 %q %q \"weir\"\n\n", time.Unix(epoch, 0).UTC().Format(time.DateOnly), "weir "+args[0])
	page := title + "# NAME\n\nweir.yaml - configuration of weir's directors and agents\n\n# DESCRIPTION\n" +
		forPage(body) + "\n# FILES\n\n/etc/weir/weir.yaml\n\n# SEE ALSO\n\n**weir(1)**, **weir-run(1)**, **weir-agent(1)**\n"
	_, err = out.Write(md2man.Render([]byte(page)))
	return err
}

var (
	toDocument = regexp.MustCompile(`\[([^][]+)\]\([^)]*\)`)
	heading    = regexp.MustCompile("^##+ ")
)

// forPage turns tables into lists of terms, because a terminal is too narrow for them, links into
// their text, because the documents are not beside the page, and headings into those of one level
// less, without code, which headings of pages do not have.
func forPage(text string) string {
	var b strings.Builder
	var columns []string // of the table that is open
	fence := false
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		isFence := strings.HasPrefix(line, "```")
		if isFence {
			fence = !fence
		}
		if fence || isFence {
			b.WriteString(line + "\n")
			continue
		}
		line = toDocument.ReplaceAllString(line, "$1")
		if !strings.HasPrefix(line, "|") {
			columns = nil
			if heading.MatchString(line) {
				line = strings.ReplaceAll(line[1:], "`", "")
			}
			b.WriteString(line + "\n")
			continue
		}
		cells := cellsOf(line)
		switch {
		case columns == nil:
			columns = cells
		case strings.Trim(line, "|-: ") != "": // else it is the line below the columns' names
			fmt.Fprintf(&b, "%s\n: %s\n\n", cells[0], definition(columns, cells))
		}
	}
	return b.String()
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
