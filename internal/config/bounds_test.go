package config

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"weir.io/weir/internal/model"
	"weir.io/weir/lab/memlab"
)

// What may be allocated to read a text, for each of its bytes, and whatever its length. A good one
// of many backends takes some 180 for each.
const (
	takenPerByte = 1500
	takenAtLeast = 4 << 20
)

// hostile are texts that the YAML package takes more for than their length warrants, or none of
// which it should be asked to read.
func hostile() map[string]string {
	repeat := strings.Repeat
	bomb := "a: &a [" + repeat("1,", 50) + "1]\n"
	for i := range 8 {
		bomb += fmt.Sprintf("%c: &%c [%s*%c]\n", 'b'+i, 'b'+i, repeat(fmt.Sprintf("*%c,", 'a'+i), 50), 'a'+i)
	}
	service := "{name: s, vip: 203.0.113.1, protocol: tcp, port: 80, mode: ipip, backends: "
	bombs := "services:\n- &s " + service + "&b [" + repeat("{address: 10.0.0.1},", 500) + "]}\n" + repeat("- "+service+"*b}\n", 5000)
	key := repeat("k", 120)
	lines := func(n int, line func(i int) string) string {
		var b strings.Builder
		for i := range n {
			b.WriteString(line(i))
		}
		return b.String()
	}
	return map[string]string{
		"maps in each other":          repeat("{a: ", 30000) + repeat("}", 30000),
		"maps by their indent":        lines(500, func(i int) string { return repeat(" ", i) + "a:\n" }),
		"lists in each other":         repeat("[", 150000),
		"lists by dashes":             repeat("- ", 20000),
		"anchors before an anchor":    "a: " + repeat("&a ", 50000) + "b",
		"tags before a tag":           "a: " + repeat("!!a ", 50000) + "b",
		"keys of one mapping":         lines(20000, func(i int) string { return fmt.Sprintf("k%d: 1\n", i) }),
		"documents":                   repeat("--- a\n...\n", 20000),
		"headers of documents":        repeat("---\na: 1\n", 20000),
		"keys without values":         "{" + repeat("a,", 50000) + "}",
		"maps without values":         "services: [" + repeat("{a},", 50000) + "]",
		"elements without values":     repeat("-\n", 50000),
		"block keys without values":   "services:\n" + repeat("- a:\n", 50000),
		"comments before values":      "services:\n" + repeat("- a:\n# c\n  - 1\n", 20000),
		"a long key above many":       repeat("k", 100000) + ": [" + repeat("1,", 50000) + "]",
		"long keys above many":        repeat("{"+key+": ", 14) + "[" + repeat("1,", 50000) + "]" + repeat("}", 14),
		"aliases of aliases":          bomb,
		"aliases of backends":         bombs,
		"an alias of itself":          "services:\n- name: &a\n    *a\n  vip: *a\n",
		"a list in itself":            "services:\n- backends: &a [*a]\n  source-ranges: *a\n",
		"a long value, often":         "services:\n- name: &a " + repeat("x", 100000) + "\n" + repeat("- {name: *a}\n", 5000),
		"many wrong elements":         "services: [" + repeat("1,", 100000) + "]",
		"many unknown keys":           "services:\n" + repeat("- {x: 1, y: 1, z: 1}\n", 20000),
		"many services of one name":   "services:\n" + repeat("- "+service+"[]}\n", 5000),
		"explicit keys":               repeat("? ", 50000) + "a",
		"colons":                      "a" + repeat(": ", 50000),
		"quotes":                      repeat(`"`, 100001),
		"a text that does not end":    `a: "` + repeat("x\n", 50000),
		"a block of text":             "a: |\n" + repeat("  x\n", 50000),
		"comments":                    repeat("# x\n", 50000) + "services: []",
		"directives":                  repeat("%YAML 1.2\n", 20000),
		"marks that mean nothing":     repeat("@`", 50000),
		"brackets that close":         repeat("]}", 50000),
		"JSON of unknown keys":        `{"services":[` + repeat(`{"a":{}},`, 20000) + `{}]}`,
		"JSON of null":                `{"services":[` + repeat(`null,`, 20000) + `null]}`,
		"JSON of lists in each other": `{"services":` + repeat("[", 9000) + repeat("]", 9000) + `}`,
	}
}

// Whatever a text says, to read it takes memory by its length, and it is refused by an error that
// is no longer than one can read.
func TestHostileTexts(t *testing.T) {
	for name, text := range hostile() {
		t.Run(name, func(t *testing.T) {
			var err error
			took := memlab.Allocated(func() { _, err = ParseSet("set.yaml", []byte(text)) })
			if most := takenAtLeast + takenPerByte*len(text); took > min(most, mostExpanded*2) {
				t.Errorf("%d bytes take %d to read, more than %d (error %.200v)", len(text), took, most, err)
			}
			if err == nil && name != "comments" {
				t.Error("it is a set")
			}
			if err != nil && len(err.Error()) > 200000 {
				t.Errorf("its error has %d bytes: %.300v", len(err.Error()), err)
			}
		})
	}
}

// What is beyond a bound is said with the line.
func TestBoundsAreSaid(t *testing.T) {
	for text, want := range map[string]string{
		"a:\n  " + strings.Repeat("[", 20):                      "set.yaml:2: is nested more than 16 deep",
		"a: 1\n" + strings.Repeat("k", 200) + ": 1":             "set.yaml:2: is a key of 200 bytes, more than 128",
		"a: 1\nb: " + strings.Repeat("v", 5000):                 "set.yaml:2: is a value of 5000 bytes, more than 4096",
		strings.Repeat("a: 1\n", 300):                           "set.yaml:257: is in a mapping of more than 256 keys",
		strings.Repeat(" ", 17<<20):                             "set.yaml: has 17825792 bytes, more than 16777216; a set of this size is sent as JSON in the form in which the API returns it",
		"a: [" + strings.Repeat("1,", 3<<20):                    "set.yaml: has 3145730 marks, more than 2097152; a set of this size is sent as JSON in the form in which the API returns it",
		"services: [" + strings.Repeat("\n1,", 700000) + "\n1]": "set.yaml: has 1400005 words and marks, more than 1048576; a set of this size is sent as JSON in the form in which the API returns it",
	} {
		if _, err := ParseSet("set.yaml", []byte(text)); err == nil || err.Error() != want {
			t.Errorf("%.20q: %v, want %s", text, err, want)
		}
	}
}

// What aliases repeat is bounded before it is copied, for files and for sets, and the error names the line
// of the alias that is one too many.
func TestAliasesAreBounded(t *testing.T) {
	service := "protocol: tcp, port: 80, mode: ipip, backends: "
	backend := `{name: web, address: 10.0.0.1, port: 8080, weight: 10}`
	text := func(backend string, backends, services int) string {
		return "services:\n- {name: s, vip: 203.0.113.1, " + service + "&b [" + strings.Repeat(backend+",", backends) + "]}\n" +
			strings.Repeat("- {name: s, vip: 203.0.113.1, "+service+"*b}\n", services)
	}
	for name, row := range map[string]struct {
		text, want string
		most       int // bytes to allocate, besides those for the text
	}{
		"values":              {text(backend, 1000, 2000), ":841: services[839].backends[693]: aliases up to this one repeat more than 4194304 values, mappings and lists", mostExpanded},
		"aliases":             {"services:\n- &s {name: s}\n" + strings.Repeat("- *s\n", mostAliases+1), ":262147: has an alias after 262144 others, which is the most", 0},
		"aliases in brackets": {"services: [&s {name: s},\n *s" + strings.Repeat(",*s", mostAliases*2) + "]", ":2: has an alias after 262144 others, which is the most", 0},
		"bytes":               {text("{address: 10.0.0.1}", 10000, 200), ":118: services[116].backends: all that is written, and aliases repeat, takes more than 335544320 bytes", mostExpanded},
	} {
		for as, read := range map[string]func([]byte) error{
			"weir.yaml": func(text []byte) error { _, err := Parse("weir.yaml", text); return err },
			"set":       func(text []byte) error { _, err := ParseSet("set", text); return err },
		} {
			var err error
			took := memlab.Allocated(func() { err = read([]byte(row.text)) })
			if want := as + row.want; err == nil || !strings.Contains("\n"+err.Error()+"\n", "\n"+want+"\n") {
				t.Errorf("%s: %.500v\nand not %s", name, err, want)
			}
			most := takenAtLeast + row.most
			if row.most > 0 {
				most += takenPerByte * len(row.text)
			}
			if took > most {
				t.Errorf("%s: as %s it takes %d bytes to refuse, more than %d", name, as, took, most)
			}
		}
	}
}

// Nothing that the model has is nested as deep as the bound, nor are there as many keys.
func TestBoundsHaveRoom(t *testing.T) {
	var depth func(t reflect.Type, seen int) int
	depth = func(of reflect.Type, seen int) (most int) {
		if seen > mostDepth {
			return seen
		}
		switch of.Kind() {
		case reflect.Pointer:
			return depth(of.Elem(), seen)
		case reflect.Slice, reflect.Map:
			return 1 + depth(of.Elem(), seen+1)
		case reflect.Struct:
			if n := of.NumField(); n > mostKeys/2 {
				t.Errorf("%s has %d keys", of, n)
			}
			for i := range of.NumField() {
				if f := of.Field(i); f.Tag.Get("json") != "" && f.Tag.Get("json") != "-" {
					most = max(most, 1+depth(f.Type, seen+1))
				}
			}
		}
		return most
	}
	if got := depth(reflect.TypeFor[model.Config](), 0); got < 5 || got > mostDepth/2 {
		t.Errorf("a configuration is nested %d deep, of at most %d", got, mostDepth)
	}
}

// wide is a set as weir writes it.
func wide(services, backends int) []byte {
	set := struct {
		Services []model.Service `json:"services"`
	}{make([]model.Service, services)}
	for i := range set.Services {
		s := fmt.Sprintf(`{"name":"s%d","vip":"203.0.%d.%d","protocol":"tcp","port":"443","mode":"ipip","retention":"1m0s","max-retention":"24h0m0s","backends":[]}`, i, i>>8, i&255)
		if err := json.Unmarshal([]byte(s), &set.Services[i]); err != nil {
			panic(err)
		}
		for j := range backends {
			b := model.NewBackend()
			if err := json.Unmarshal(fmt.Appendf(nil, `{"name":"b%d","address":"10.%d.%d.%d"}`, j, j, i>>8, i&255), &b); err != nil {
				panic(err)
			}
			set.Services[i].Backends = append(set.Services[i].Backends, b)
		}
	}
	text, err := json.Marshal(set)
	if err != nil {
		panic(err)
	}
	return text
}

// A set as weir writes it is read without the YAML package, and says the same; what differs from
// that by a character is left to it.
func TestWritten(t *testing.T) {
	text := wide(200, 20)
	services, is := written(text)
	if !is || len(services) != 200 || len(services[199].Backends) != 20 {
		t.Fatalf("a set as weir writes it is not read: %v, %d services", is, len(services))
	}
	var quick, slow []model.Service
	var err error
	took := memlab.Allocated(func() { quick, err = ParseSet("set", text) })
	if err != nil {
		t.Fatal(err)
	}
	if most := 60 * len(text); took > most {
		t.Errorf("%d bytes as weir writes them take %d to read, more than %d", len(text), took, most)
	}
	if slow, err = ParseSet("set", append(text, ' ', '#')); err != nil || !reflect.DeepEqual(quick, slow) {
		t.Errorf("it is another set to the YAML package (%v)", err)
	}
	for _, change := range [][2]string{{`"vip"`, `"VIP"`}, {`"vip"`, `"vpi"`}, {`,"weight":100`, ``}, {`"tcp"`, ` "tcp"`}, {`]}`, `],"backends":[]}`},
		{`"weight":100`, `"weight":null`}, {`"10.0.`, `"10.00.`}, {`{"services"`, `{"x":1,"services"`}} {
		if _, is := written([]byte(strings.Replace(string(text), change[0], change[1], 1))); is {
			t.Errorf("with %s for %s it is read as what weir writes", change[1], change[0])
		}
	}
}

// Whatever a set says, to read it takes memory by its length, and it is the same set by each way.
func FuzzSetMemory(f *testing.F) {
	for _, text := range hostile() {
		f.Add(text[:min(len(text), 2000)])
	}
	f.Add(string(wide(2, 2)))
	f.Fuzz(func(t *testing.T, text string) {
		var services []model.Service
		var err error
		took := memlab.Allocated(func() { services, err = ParseSet("set", []byte(text)) })
		if most := takenAtLeast + takenPerByte*len(text); took > most {
			t.Errorf("%d bytes take %d to read, more than %d (%v)", len(text), took, most, err)
		}
		if _, is := written([]byte(text)); !is {
			return
		}
		slow, again := ParseSet("set", []byte(text+" #"))
		if (err == nil) != (again == nil) || !reflect.DeepEqual(services, slow) {
			t.Errorf("%s is %v (%v), and to the YAML package %v (%v)", text, services, err, slow, again)
		}
	})
}

// TestCommentsAreNoValues: a value that follows a comment is not missing, wherever the comment stands.
func TestCommentsAreNoValues(t *testing.T) {
	var text strings.Builder
	text.WriteString("services:\n")
	for i := range mostMissing + 1 {
		fmt.Fprintf(&text, "# of team %d\n- name: s%d\n  backends:\n# - address: 192.0.2.1\n\n# this one only\n  - address: 192.0.2.2\n", i, i)
	}
	if _, errs := parseTree([]byte(text.String()), false); len(errs) > 0 {
		t.Errorf("a file with comments is refused: %v", errs)
	}
	nothing := "services:\n" + strings.Repeat("- a:\n  # nothing\n", mostMissing+2)
	if _, errs := parseTree([]byte(nothing), false); len(errs) != 1 || !strings.Contains(errs[0].Problem, "missing") {
		t.Errorf("values that are missing before comments are refused as %v", errs)
	}
}
