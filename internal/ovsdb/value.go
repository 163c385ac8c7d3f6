package ovsdb

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
)

// UUID names a row: RFC 7047 section 5.1.
type UUID string

// MarshalJSON writes ["uuid", "..."].
func (u UUID) MarshalJSON() ([]byte, error) { return json.Marshal([]string{"uuid", string(u)}) }

// UnmarshalJSON reads ["uuid", "..."].
func (u *UUID) UnmarshalJSON(text []byte) error {
	var pair []string
	if err := json.Unmarshal(text, &pair); err != nil || len(pair) != 2 || pair[0] != "uuid" {
		return fmt.Errorf("%.60s is not a UUID", text)
	}
	*u = UUID(pair[1])
	return nil
}

// Named is a row that the same transaction inserts, by its uuid-name.
type Named string

// MarshalJSON writes ["named-uuid", "..."].
func (n Named) MarshalJSON() ([]byte, error) {
	return json.Marshal([]string{"named-uuid", string(n)})
}

// Set is a column of no, one or several values; an optional value, too.
type Set[T any] []T

// MarshalJSON writes ["set", [...]].
func (s Set[T]) MarshalJSON() ([]byte, error) {
	return json.Marshal([]any{"set", append([]T{}, s...)})
}

// UnmarshalJSON reads ["set", [...]], or one value.
func (s *Set[T]) UnmarshalJSON(text []byte) error {
	if elements, is := tagged(text, "set"); is {
		var list []T
		if err := json.Unmarshal(elements, &list); err != nil {
			return err
		}
		*s = list
		return nil
	}
	var one T
	if err := json.Unmarshal(text, &one); err != nil {
		return err
	}
	*s = Set[T]{one}
	return nil
}

// One returns an optional value, or the zero value.
func (s Set[T]) One() (value T) {
	if len(s) > 0 {
		value = s[0]
	}
	return value
}

// Toggle returns a set after a change of ovsdb-server(7) section 4.1.14: the elements that only one of
// the two versions has.
func Toggle[T comparable](s, changed Set[T]) Set[T] {
	result := slices.DeleteFunc(slices.Clone(s), func(e T) bool { return slices.Contains(changed, e) })
	for _, e := range changed {
		if !slices.Contains(s, e) {
			result = append(result, e)
		}
	}
	return result
}

// Map is a column of pairs of strings.
type Map map[string]string

// MarshalJSON writes ["map", [[key, value], ...]], in the order of the keys.
func (m Map) MarshalJSON() ([]byte, error) {
	pairs := [][2]string{}
	for _, key := range slices.Sorted(maps.Keys(m)) {
		pairs = append(pairs, [2]string{key, m[key]})
	}
	return json.Marshal([]any{"map", pairs})
}

// UnmarshalJSON reads ["map", [[key, value], ...]].
func (m *Map) UnmarshalJSON(text []byte) error {
	elements, is := tagged(text, "map")
	if !is {
		return fmt.Errorf("%.60s is not a map", text)
	}
	var pairs [][]string
	if err := json.Unmarshal(elements, &pairs); err != nil {
		return err
	}
	read := make(Map, len(pairs))
	for _, pair := range pairs {
		if len(pair) != 2 {
			return fmt.Errorf("%.60s has something that is not a pair", text)
		}
		read[pair[0]] = pair[1]
	}
	*m = read
	return nil
}

// Toggle returns a map after a change of ovsdb-server(7) section 4.1.14: pairs that only one of the two
// versions has, and the new values of keys that both have.
func (m Map) Toggle(changed Map) Map {
	result := maps.Clone(m)
	if result == nil {
		result = Map{}
	}
	for key, value := range changed {
		if old, has := m[key]; has && old == value {
			delete(result, key)
		} else {
			result[key] = value
		}
	}
	return result
}

// tagged returns what follows in an array of two whose first element is a word.
func tagged(text []byte, word string) (json.RawMessage, bool) {
	if !bytes.HasPrefix(text, []byte("[")) {
		return nil, false
	}
	var pair []json.RawMessage
	if err := json.Unmarshal(text, &pair); err != nil || len(pair) != 2 || string(pair[0]) != `"`+word+`"` {
		return nil, false
	}
	return pair[1], true
}

// Row has columns by their names.
type Row map[string]json.RawMessage

// Change is what became of a row: one of the fields is set. Initial and Insert leave out columns with
// the default value of their type. Modify has the new value of a column that holds at most one, and
// of other columns the differences (Toggle).
type Change struct {
	Initial, Insert, Modify Row
	Delete                  bool
}

// UnmarshalJSON reads a row-update2 of ovsdb-server(7) section 4.1.14.
func (c *Change) UnmarshalJSON(text []byte) error {
	var object map[string]json.RawMessage
	if err := json.Unmarshal(text, &object); err != nil {
		return err
	}
	for word, row := range object {
		var err error
		switch word {
		case "initial":
			err = readRow(row, &c.Initial)
		case "insert":
			err = readRow(row, &c.Insert)
		case "modify":
			err = readRow(row, &c.Modify)
		case "delete":
			c.Delete = true
		default:
			err = errors.New("a change of a row is of no known kind: " + word)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// readRow reads a row, which is never nil then: it may have no column but those with default values.
func readRow(text json.RawMessage, row *Row) error {
	*row = Row{}
	return json.Unmarshal(text, row)
}

// Changes are by table and row.
type Changes map[string]map[UUID]Change
