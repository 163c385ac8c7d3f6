package weir_test

import (
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	includeLine = regexp.MustCompile(`(?m)^\s*#\s*include\s*(["<])([^">]+)[">]`)
	comment     = regexp.MustCompile(`(?s)/\*.*?\*/`)
	// A definition begins a line with its type, ends one with ")", and "{" and "}" stand alone.
	definition = regexp.MustCompile(`(?ms)^[a-z_][^;{}#]*?\b(\w+)\([^;{}]*?\)\n\{\n(.*?)^\}`)
	prototype  = regexp.MustCompile(`(?m)^[a-z_][^;{}#=]*?\b(\w+)\([^;{}]*?\);$`)
)

// attributes look like functions in declarations.
var attributes = []string{"__attribute__", "SEC", "_Static_assert", "offsetof", "__uint", "__type", "__array"}

// mayInclude are the folders of bpf/ whose files each folder may include, besides its own.
var mayInclude = map[string][]string{
	"abi": {}, "lib": {"abi"}, "director": {"abi", "lib"}, "host": {"abi", "lib"}, "redirect": {"abi", "lib"}, "small": {"abi", "lib"},
}

// readBPF returns the text of each program and header of bpf/ without comments, by its path there.
func readBPF(t *testing.T) map[string]string {
	t.Helper()
	text := map[string]string{}
	for _, file := range tracked(t, ".h", ".bpf.c") {
		if name, found := strings.CutPrefix(file, "bpf/"); found {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			text[name] = comment.ReplaceAllString(string(data), "")
		}
	}
	return text
}

// includesOf returns which files of bpf/ a text includes. In quotes it means one, in angle brackets
// only if it is there.
func includesOf(text string) []string {
	var files []string
	for _, m := range includeLine.FindAllStringSubmatch(text, -1) {
		_, err := os.Stat(path.Join("bpf", m[2]))
		if m[1] == `"` || err == nil {
			files = append(files, m[2])
		}
	}
	return files
}

func TestIncludesAreFound(t *testing.T) {
	text := `#include <linux/bpf.h>
#include "lib/packet.h" /* why */
#include <host/tunnel.h>
# include "director/maps.h" // why
	#include"abi/types.h"
`
	want := []string{"lib/packet.h", "host/tunnel.h", "director/maps.h", "abi/types.h"}
	if got := includesOf(text); !slices.Equal(got, want) {
		t.Errorf("found %q, want %q", got, want)
	}
}

// A folder of bpf/ says which programs its files may be part of.
func TestProgramsIncludeWhatTheirFoldersMay(t *testing.T) {
	for file, text := range readBPF(t) {
		from, _, _ := strings.Cut(file, "/")
		allowed, known := mayInclude[from]
		if !known {
			t.Errorf("bpf/%s is in no folder that this test knows", file)
		}
		for _, include := range includesOf(text) {
			if to, _, _ := strings.Cut(include, "/"); to != from && !slices.Contains(allowed, to) {
				t.Errorf("bpf/%s includes %s: files of %s may include %s", file, include, from, allowed)
			}
		}
	}
}

// With no circle of includes and no prototypes, a function can only call what is defined above it, so
// calls form no circle of files either. No header is left that no program includes.
func TestProgramsFormNoCircle(t *testing.T) {
	text := readBPF(t)
	done := map[string]bool{}
	var visit func(file string, way []string)
	visit = func(file string, way []string) {
		if slices.Contains(way, file) {
			t.Errorf("a circle of includes: %s", strings.Join(append(way, file), " -> "))
			return
		}
		if done[file] {
			return
		}
		done[file] = true
		if _, is := text[file]; !is {
			t.Errorf("%s includes bpf/%s, which does not exist", way[len(way)-1], file)
		}
		for _, include := range includesOf(text[file]) {
			visit(include, append(slices.Clone(way), file))
		}
	}
	for file := range text {
		if strings.HasSuffix(file, ".bpf.c") {
			visit(file, nil)
		}
	}
	for file, text := range text {
		if !done[file] {
			t.Errorf("no program includes bpf/%s", file)
		}
		for _, m := range prototype.FindAllStringSubmatch(text, -1) {
			if !slices.Contains(attributes, m[1]) {
				t.Errorf("bpf/%s declares %s before it is defined: a call upwards", file, m[1])
			}
		}
	}
}

// step is a line of a journey: a function, and the file that defines it.
type step struct {
	depth      int
	name, file string
}

var stepLine = regexp.MustCompile(`^( *)([\w.]+) +([\w/]+\.(?:h|bpf\.c|go)) +\S.*$`)

// readJourneys returns the journeys of a document: its blocks of code in which some line is a step.
func readJourneys(t *testing.T, document string) [][]step {
	t.Helper()
	data, err := os.ReadFile(document)
	if err != nil {
		t.Fatal(err)
	}
	var journeys [][]step
	for i, block := range strings.Split(string(data), "```") {
		if i%2 == 0 {
			continue
		}
		var steps []step
		wrong := ""
		for line := range strings.Lines(strings.Trim(block, "\n")) {
			if m := stepLine.FindStringSubmatch(strings.TrimRight(line, "\n")); m != nil {
				steps = append(steps, step{len(m[1]) / 2, m[2], m[3]})
			} else {
				wrong = line
			}
		}
		switch {
		case len(steps) == 0:
		case wrong != "":
			t.Fatalf("%s: no step of a journey: %q", document, wrong)
		default:
			journeys = append(journeys, steps)
		}
	}
	return journeys
}

// checkJourneys compares journeys of a document with the code: each step is a function of the file
// that the step names, and the function a level above calls it, in the order of the steps. callsOf
// returns the names of the functions that a function calls, in their order, and whether its file
// defines it.
func checkJourneys(t *testing.T, document string, journeys [][]step, callsOf func(step) ([]string, bool)) {
	t.Helper()
	for _, steps := range journeys {
		var above []step
		var at []int // behind the call of the last step of a level, among the calls of the one above it
		for _, s := range steps {
			if _, defined := callsOf(s); !defined {
				t.Errorf("%s defines no function %s, which %s names", s.file, s.name, document)
			}
			if s.depth > len(above) {
				t.Fatalf("%s: %s is more than one level below the step before it", document, s.name)
			}
			above, at = above[:s.depth], at[:min(len(at), s.depth)]
			if s.depth > 0 {
				caller, called := above[s.depth-1], s.name[strings.LastIndex(s.name, ".")+1:]
				if len(at) < s.depth {
					at = append(at, 0)
				}
				calls, _ := callsOf(caller)
				next := slices.Index(calls[at[s.depth-1]:], called)
				switch {
				case next >= 0:
					at[s.depth-1] += next + 1
				case slices.Contains(calls, called):
					t.Errorf("%s in %s calls %s earlier than %s says", caller.name, caller.file, called, document)
				default:
					t.Errorf("%s in %s does not call %s, as %s says", caller.name, caller.file, called, document)
				}
			}
			above = append(above, s)
		}
	}
}

// bodyOf returns the body of a function that a file defines.
func bodyOf(text, name string) string {
	for _, m := range definition.FindAllStringSubmatch(text, -1) {
		if m[1] == name {
			return m[2]
		}
	}
	return ""
}

var call = regexp.MustCompile(`\b(\w+)\(`)

// The journeys of packets in bpf/README.md are as the programs go.
func TestJourneysAreAsTheProgramsGo(t *testing.T) {
	text := readBPF(t)
	journeys := readJourneys(t, "bpf/README.md")
	if len(journeys) < 6 {
		t.Fatalf("there are %d journeys: those of the director, three of a host and two of a client are expected", len(journeys))
	}
	checkJourneys(t, "bpf/README.md", journeys, func(s step) (calls []string, defined bool) {
		body := bodyOf(text[s.file], s.name)
		for _, m := range call.FindAllStringSubmatch(body, -1) {
			calls = append(calls, m[1])
		}
		return calls, body != ""
	})
}

var folderRow = regexp.MustCompile("`([\\w/]+)/`")

// Each folder of bpf/ has a row in its README, and each row's folders exist.
func TestFoldersOfProgramsAreDocumented(t *testing.T) {
	data, err := os.ReadFile("bpf/README.md")
	if err != nil {
		t.Fatal(err)
	}
	for file := range readBPF(t) {
		if folder := "`" + path.Dir(file) + "/`"; !strings.Contains(string(data), folder) {
			t.Errorf("bpf/README.md does not say what %s has", folder)
		}
	}
	rows := 0
	for line := range strings.Lines(string(data)) {
		first, _, is := strings.Cut(strings.TrimPrefix(line, "| "), " |")
		if !is || !strings.HasPrefix(line, "| `") {
			continue
		}
		for _, m := range folderRow.FindAllStringSubmatch(first, -1) {
			rows++
			if _, err := os.Stat(path.Join("bpf", m[1])); err != nil {
				t.Errorf("bpf/README.md has a row of a folder that is gone: %v", err)
			}
		}
	}
	if rows == 0 {
		t.Error("bpf/README.md has no row of a folder")
	}
}
