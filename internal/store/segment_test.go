package store

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"weir.io/weir/internal/model"
	"weir.io/weir/lab/memlab"
)

// A set of any size comes back from its segments, none of which is much longer than
// etcd likes, and a change of one service changes few of them.
func TestCut(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 30 {
		var set Set
		for i := range random.IntN(200) {
			s := service(fmt.Sprint(i), byte(i), random.IntN(30))
			set.Documents = append(set.Documents, Document{Service: s, Log: count(model.Log{}, s)})
		}
		before, err := cut(set)
		if err != nil {
			t.Fatal(err)
		}
		checkSegments(t, set, before)
		i := random.IntN(len(set.Documents) + 1)
		added := service("added", 250, 1)
		longer := Set{Documents: slices.Insert(slices.Clone(set.Documents), i, Document{Service: added})}
		after, err := cut(longer)
		if err != nil {
			t.Fatal(err)
		}
		checkSegments(t, longer, after)
		fresh := 0
		for _, s := range after {
			if !slices.ContainsFunc(before, func(b segment) bool { return b.name == s.name }) {
				fresh++
			}
		}
		// The segment that it falls into, which may have become two.
		if fresh > 2 {
			t.Errorf("one more service in %d made %d new segments", len(set.Documents), fresh)
		}
	}
}

func checkSegments(t *testing.T, set Set, segments []segment) {
	t.Helper()
	r := root{Sets: map[string][]string{"cli": {}}}
	byName := map[string]segment{}
	for _, s := range segments {
		if len(s.text) > cutLength && len(s.documents) > 1 {
			t.Errorf("%d documents are in a segment of %d bytes", len(s.documents), len(s.text))
		}
		again, err := newSegment(s.name, s.text)
		if err != nil {
			t.Fatal(err)
		}
		r.Sets["cli"] = append(r.Sets["cli"], s.name)
		byName[s.name] = again
		if _, err := newSegment(s.name, bytes.Replace(s.text, []byte("tcp"), []byte("udp"), 1)); err == nil {
			t.Error("an altered segment is read")
		}
	}
	got, err := r.state(byName)
	if err != nil {
		t.Fatal(err)
	}
	if !set.equal(got.Sets["cli"]) {
		t.Errorf("a set of %d services is another one when it comes back", len(set.Documents))
	}
}

// Few bytes of a log can stand for many: what the documents of a segment take is bounded.
func TestSegmentsAreBounded(t *testing.T) {
	kept := strings.Repeat(`{"kept":"1048576 gaps "},`, 100)
	text := []byte(strings.Repeat(`{"service":{},"log":{"generations":[`+kept[:len(kept)-1]+`]}}`+"\n", 100))
	memlab.Bound{PerByte: 100, AtLeast: 2 * mostSegment}.Check(t, len(text), func() {
		if _, err := newSegment(nameOf(text), text); err == nil || !strings.Contains(err.Error(), "take more than") {
			t.Errorf("a segment of %d bytes that takes 1.3 GB is read: %v", len(text), err)
		}
	})
}
