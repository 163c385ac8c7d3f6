package ovsdb

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// The notation of RFC 7047, section 5.1.
func TestValues(t *testing.T) {
	check(t, `["uuid","a"]`, Set[UUID]{"a"}, `["set",[["uuid","a"]]]`)
	check(t, `["set",[]]`, Set[UUID]{}, `["set",[]]`)
	check(t, `["set",[["uuid","a"],["uuid","b"]]]`, Set[UUID]{"a", "b"}, `["set",[["uuid","a"],["uuid","b"]]]`)
	check(t, `"one"`, Set[string]{"one"}, `["set",["one"]]`)
	check(t, `["set",["one","two"]]`, Set[string]{"one", "two"}, `["set",["one","two"]]`)
	check(t, `true`, Set[bool]{true}, `["set",[true]]`)
	check(t, `7`, Set[int64]{7}, `["set",[7]]`)
	check(t, `["uuid","a"]`, UUID("a"), `["uuid","a"]`)
	check(t, `["map",[["k","v"],["a","b"]]]`, Map{"k": "v", "a": "b"}, `["map",[["a","b"],["k","v"]]]`)
	check(t, `["map",[]]`, Map{}, `["map",[]]`)
	if text, err := json.Marshal(Named("row")); err != nil || string(text) != `["named-uuid","row"]` {
		t.Errorf("a named row is written %s (%v)", text, err)
	}
	refuse[UUID](t, `"a"`, `["uuid"]`, `["uuid","a","b"]`, `["set",[]]`, `7`)
	refuse[Map](t, `{}`, `["map"]`, `["map",[["k"]]]`, `["map",[["k","v","w"]]]`, `["set",[]]`, `["map",{}]`)
	refuse[Set[UUID]](t, `["set",["a"]]`, `"a"`, `["set",{}]`)
	refuse[Set[bool]](t, `"true"`, `["set",[1]]`)
	refuse[Change](t, `[]`, `{"initial":[]}`, `{"replace":{}}`)
}

func check[T any](t *testing.T, text string, want T, written string) {
	t.Helper()
	var got T
	if err := json.Unmarshal([]byte(text), &got); err != nil {
		t.Errorf("%s is not read: %v", text, err)
	}
	if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("%s is read as %v", text, got)
	}
	if back, err := json.Marshal(got); err != nil || string(back) != written {
		t.Errorf("%v is written %s (%v), want %s", got, back, err, written)
	}
}

func refuse[T any](t *testing.T, texts ...string) {
	t.Helper()
	for _, text := range texts {
		var got T
		if err := json.Unmarshal([]byte(text), &got); err == nil {
			t.Errorf("%s is read as a %T: %v", text, got, got)
		}
	}
}

// A change of a set or a map is what differs: applied to the old version it makes the new one, and leaves
// the old one as it is.
func TestToggle(t *testing.T) {
	for _, c := range []struct{ old, changed, want Set[string] }{
		{nil, nil, nil},
		{nil, Set[string]{"a"}, Set[string]{"a"}},
		{Set[string]{"a", "b"}, Set[string]{"b", "c"}, Set[string]{"a", "c"}},
		{Set[string]{"a"}, Set[string]{"a"}, nil},
	} {
		before := slices.Clone(c.old)
		if got := Toggle(c.old, c.changed); !slices.Equal(got, c.want) || !slices.Equal(c.old, before) {
			t.Errorf("%v with %v is %v, want %v", c.old, c.changed, got, c.want)
		}
	}
	for _, c := range []struct{ old, changed, want Map }{
		{nil, Map{"a": "1"}, Map{"a": "1"}},
		{Map{"a": "1", "b": "2", "c": "3"}, Map{"a": "1", "b": "9", "d": "4"}, Map{"b": "9", "c": "3", "d": "4"}},
	} {
		before := fmt.Sprint(c.old)
		if got := c.old.Toggle(c.changed); !cmp.Equal(got, c.want) || fmt.Sprint(c.old) != before {
			t.Errorf("%v with %v is %v, want %v", c.old, c.changed, got, c.want)
		}
	}
}
