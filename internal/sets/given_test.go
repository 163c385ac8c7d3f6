package sets

import (
	"strings"
	"testing"

	"weir.io/weir/internal/api"
	"weir.io/weir/internal/config"
	"weir.io/weir/internal/model"
	"weir.io/weir/lab/memlab"
)

// givenText is a set with logs as it is sent, with one service for each number of backends.
func givenText(t *testing.T, backends ...int) []byte {
	t.Helper()
	var documents []model.Document
	for i, n := range backends {
		text := "services:\n- name: s" + string(rune('a'+i)) + "\n  vip: 203.0.113." + string(rune('1'+i)) + "\n  protocol: tcp\n  port: 80\n  mode: ipip\n  backends:\n"
		for j := range n {
			text += "  - {name: b" + string(rune('0'+j)) + ", address: 10.0." + string(rune('0'+i)) + "." + string(rune('1'+j)) + "}\n"
		}
		services, err := config.ParseSet("set", []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		documents = append(documents, model.Document{Service: services[0], Log: model.Log{Generations: []model.Generation{{Number: 1, Slots: 53}}}})
	}
	text, err := api.DocumentsText(documents)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// When a set comes again, only services whose text differs are read, and the others keep their
// memory. Nothing is remembered of a set that was not taken, or for another owner.
func TestGivenSetsAreReadOnce(t *testing.T) {
	var g given
	parse := func(owner string, text []byte, reads int) givenSet {
		t.Helper()
		before := g.read
		set, err := g.parse(owner, text)
		if err != nil {
			t.Fatal(err)
		}
		if g.read-before != reads {
			t.Errorf("%d documents were read, want %d", g.read-before, reads)
		}
		for i, known := range set.known {
			if len(set.documents[i].Service.Backends) == 0 || !known && reads == 0 {
				t.Errorf("document %d has no backends, or is not known", i)
			}
		}
		return set
	}
	first := parse("kube.edge.0", givenText(t, 2, 2, 2), 3)
	parse("kube.edge.0", givenText(t, 2, 2, 2), 3) // the set before was not taken
	g.keep("kube.edge.0", first)
	parse("kube.edge.1", givenText(t, 2, 2, 2), 3)
	next := parse("kube.edge.0", givenText(t, 2, 3, 2), 1)
	if &next.documents[0].Service.Backends[0] != &first.documents[0].Service.Backends[0] || len(next.documents[1].Service.Backends) != 3 {
		t.Error("what is written as it was is not the same, or what is not is")
	}
	g.keep("kube.edge.0", next)
	parse("kube.edge.0", givenText(t, 2, 3, 2), 0)
	parse("kube.edge.0", givenText(t, 2, 2, 2), 1) // the earlier text is forgotten
	g.keep("kube.edge.0", parse("kube.edge.0", givenText(t), 0))
	if len(g.of) != 0 {
		t.Errorf("of an empty set %v is remembered", g.of)
	}
	for _, bad := range []string{`{"documents": [{"service": {"nme": "a"}}]}`, `{"document": []}`, `{"documents": []} {}`, `{"documents": [3]}`, ``} {
		if _, err := g.parse("kube.edge.0", []byte(bad)); err == nil {
			t.Errorf("%s is read", bad)
		}
	}
	if set, err := g.parse("kube.edge.0", []byte(`{}`)); err != nil || set.documents != nil {
		t.Errorf("what has no documents is read as %v, with error %v", set.documents, err)
	}
	if _, err := g.parse("kube.edge.0", []byte(strings.Repeat("[", 20000))); err == nil {
		t.Error("nonsense is read")
	}
}

// A few bytes of a log can expand to many: the size of all logs of a set is bounded while it is
// read.
func TestGivenSetsAreBounded(t *testing.T) {
	kept := strings.Repeat(`{"kept":"1048576 gaps "},`, 100)
	document := `{"service":{},"log":{"generations":[` + kept[:len(kept)-1] + `]}},`
	text := `{"documents":[` + strings.TrimSuffix(strings.Repeat(document, 100), ",") + `]}`
	var g given
	memlab.Bound{PerByte: 100, AtLeast: mostGiven}.Check(t, len(text), func() {
		if _, err := g.parse("a", []byte(text)); err == nil || !strings.Contains(err.Error(), "take more than") {
			t.Errorf("a set of %d bytes that takes 1.3 GB is read: %v", len(text), err)
		}
	})
}
