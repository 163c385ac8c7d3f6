package manual_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"weir.io/weir/internal/manual"
)

// TestLiteral: text stays text, whatever it has that man(7) would read as a request or an escape.
func TestLiteral(t *testing.T) {
	for text, want := range map[string]string{
		".TH at the beginning": `\&.TH at the beginning`,
		"'quoted'":             `\&'quoted'`,
		`a \n, --flag`:         `a \en, \-\-flag`,
	} {
		if got := manual.Literal(text); got != want {
			t.Errorf("%q is written as %q, not %q", text, got, want)
		}
	}
}

const document = "# Configuration\n" + `
One file. See [the keys](#keys), and ` + "`weir check`" + `.

## ` + "`director`" + `: this host

| key | meaning | default |
|---|---|---|
| ` + "`mode`" + ` | one of ` + "`nat` \\| `gue`" + ` | none |
| ` + "`port`" + ` | ` + "`.1`, or `'a'`" + ` | |

**Not this.** Two of them:

- one
- two

    and more
- three

### Below

` + "```yaml\n.mode: 'nat'  # `as it is` | [a](b)\n\n'x': \\n\n```\n"

const page = `.nh
.TH weir.yaml 5 "2023-11-14" "weir 1.2.3" "weir"

.SH NAME
weir.yaml \- configuration of weir's directors and agents


.SH DESCRIPTION
One file. See the keys, and \fBweir check\fR\&.


.SH director: this host
.TP
\fBmode\fR
one of \fBnat\fR | \fBgue\fR\&. Default: none.

.TP
\fBport\fR
\fB\&.1\fR, or \fB\&'a'\fR\&.

.PP
\fBNot this.\fP Two of them:
.IP \(bu 2
one
.IP \(bu 2
two

and more
.IP \(bu 2
three

.SH Below
.EX
\&.mode: 'nat'  # ` + "`as it is`" + ` | [a](b)

\&'x': \en
.EE


.SH FILES
/etc/weir/weir.yaml


.SH SEE ALSO
\fBweir(1)\fP, \fBweir-run(1)\fP, \fBweir-agent(1)\fP
`

var date = time.Unix(1700000000, 0).UTC()

// TestConfiguration: every kind of block and mark that the document has becomes one of man(7).
func TestConfiguration(t *testing.T) {
	got, err := manual.Configuration(document, "1.2.3", date)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(page, string(got)); diff != "" {
		t.Error(diff)
	}
}

// TestConfigurationRefuses: what the page could not show is an error that names the line, and not text with
// Markdown in it.
func TestConfigurationRefuses(t *testing.T) {
	for text, want := range map[string]string{
		"# Another title\n":                                    `does not begin with "# Configuration"`,
		"# Configuration\n\n1. first\n":                        "line 3 of the document",
		"# Configuration\n\n- a\n  - b":                        "line 4 of the document",
		"# Configuration\n> quoted\n":                          "line 2 of the document",
		"# Configuration\n#### deep\n":                         "line 2 of the document",
		"# Configuration\nan *accent*":                         `"*"`,
		"# Configuration\nan `open":                            "\"`\"",
		"# Configuration\na <br> here":                         `"<"`,
		"# Configuration\n```\nopen":                           "no end",
		"# Configuration\n- _accent_":                          "line 2 of the document",
		"# Configuration\n| a | b |\n|---|---|\n| c | *d* |\n": "line 4 of the document",
	} {
		if page, err := manual.Configuration(text, "1", date); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, and not an error with %s\n%s", text, err, want, page)
		}
	}
}

// TestConfigurationPage: the page of the real document has each of its keys. make test-release has man(1) read it.
func TestConfigurationPage(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "reference", "configuration.md"))
	if err != nil {
		t.Fatal(err)
	}
	page, err := manual.Configuration(string(text), "1.2.3", date)
	if err != nil {
		t.Fatal(err)
	}
	keys := 0
	for line := range strings.Lines(string(text)) {
		key, is := strings.CutPrefix(line, "| `")
		if !is {
			continue
		}
		keys++
		key, _, _ = strings.Cut(key, "`")
		if !strings.Contains(string(page), "\n.TP\n"+manual.Bold(manual.Prose(key))) {
			t.Errorf("the page has no entry for %s", key)
		}
	}
	if keys < 100 {
		t.Errorf("the document has %d keys: are they in tables no more?", keys)
	}
}
