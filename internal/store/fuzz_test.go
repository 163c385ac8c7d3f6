package store

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"weir.io/weir/lab/memlab"
)

// Documents as stores have them.
const (
	oneDocument  = `{"service":{"name":"web","vip":"192.0.2.1","protocol":"tcp","port":443,"mode":"gue"},"log":{"generations":[]}}`
	twoDocuments = oneDocument + "\n" + `{"service":{"name":"dns","vip":"2001:db8::1","protocol":"udp","port":53,"mode":"l2dsr"},"log":{}}` + "\n"
)

// readBound is what may be allocated to read a value or a file, sets of slots included.
var readBound = memlab.Bound{PerByte: 300, AtLeast: 64 << 20}

// FuzzMemory: whatever is in etcd or a file, to read it takes memory by its length.
func FuzzMemory(f *testing.F) {
	f.Add([]byte(twoDocuments))
	f.Add([]byte(`{"service":{"backends":[{},{},null]},"log":{"generations":[{"kept":"1048576 gaps "}]}}`))
	f.Add([]byte(`{"format":1,"revision":1,"sets":{"a":["x","x"]}}`))
	f.Add([]byte(`{"format":1,"owner":"config","revision":3,"documents":[` + "\n" + oneDocument + "\n]}\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		readBound.Check(t, 5*len(text), func() {
			_, _ = newSegment(nameOf(text), text)
			_, _ = decode(text)
			_, _ = readRoot(text)
		})
	})
}

// A segment that a root names many times would be that many times its documents.
func TestRootNamesTwice(t *testing.T) {
	for _, sets := range []string{`{"a":["x","x"]}`, `{"a":["x"],"b":["x"]}`} {
		if _, err := readRoot([]byte(`{"format":1,"revision":1,"sets":` + sets + `}`)); err == nil || !strings.Contains(err.Error(), "is there twice") {
			t.Errorf("the sets %s are read: %v", sets, err)
		}
	}
}

// FuzzDecode: a file of a set is refused with a place inside of it, or read as what is written
// again, byte for byte the same the second time.
func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"format":1,"owner":"config","revision":3,"documents":[` + "\n" + oneDocument + "\n]}\n"))
	f.Add([]byte(`{"format":1,"owner":"a\u0007b","revision":0,"documents":[]}`))
	f.Add([]byte(`{"format":2,"owner":"","revision":0,"documents":[]}`))
	f.Add([]byte(`{"format":1,"owner":"x","revision":-1,"documents":[]}`))
	f.Add([]byte(`{"format":1,"owner":"x","revision":1,"documents":[{"service":{}},]}`))
	f.Add([]byte(`{"format":1,"owner":"x","revision":1,"documents":[]} {}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		w, err := decode(text)
		if err != nil {
			var bad *badText
			if !errors.As(err, &bad) {
				t.Fatalf("the error says no place: %v", err)
			}
			if line, column := bad.position(text); line < 1 || column < 1 || line > 1+bytes.Count(text, []byte("\n")) {
				t.Fatalf("the error is at line %d, column %d", line, column)
			}
			return
		}
		once, err := w.encode()
		if err != nil {
			return // it has values that have no text
		}
		again, err := decode(once)
		if err != nil && len(w.Documents) > 0 {
			return // a service without a protocol, say: what is stored was validated
		}
		if err != nil {
			t.Fatalf("what is written cannot be read: %v\n%s", err, once)
		}
		if twice, err := again.encode(); err != nil || !bytes.Equal(once, twice) {
			t.Fatalf("written as\n%s\nand then (%v) as\n%s", once, err, twice)
		}
	})
}

// FuzzSegment: the same for what directors read from etcd, of which the name says what is in it.
func FuzzSegment(f *testing.F) {
	f.Add([]byte(twoDocuments))
	f.Add([]byte(oneDocument + `{"service":`))
	f.Add([]byte(`{"service":{"name":"web"},"log":{"generations":[{}]},"affinities":["flow","flow"]}`))
	f.Add([]byte(``))
	f.Fuzz(func(t *testing.T, text []byte) {
		if _, err := newSegment(nameOf(text)+"x", text); err == nil {
			t.Fatal("a segment of another name is read")
		}
		s, err := newSegment(nameOf(text), text)
		if err != nil {
			return
		}
		once, has := textOf(s.documents)
		again, err := newSegment(nameOf(once), once)
		if !has || err != nil {
			return // values that have no text, or none that is read: what is stored was validated
		}
		if twice, _ := textOf(again.documents); !bytes.Equal(once, twice) {
			t.Fatalf("written as\n%s\nand then as\n%s", once, twice)
		}
	})
}

func textOf(documents []Document) (text []byte, has bool) {
	for _, d := range documents {
		line, err := json.Marshal(d)
		if err != nil {
			return nil, false
		}
		text = append(text, line...)
	}
	return text, true
}

// FuzzRoot: a root that is read is not whole without its segments.
func FuzzRoot(f *testing.F) {
	f.Add([]byte(`{"format":1,"revision":1,"sets":{"config":["a"],"x":null}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		if root, err := readRoot(text); err == nil {
			if _, err := root.state(nil); err == nil && len(root.names()) > 0 {
				t.Fatal("a root is whole without its segments")
			}
		}
	})
}
