package store

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/netip"
	"testing"

	"weir.io/weir/internal/model"
)

// Documents as stores have them.
const (
	oneDocument  = `{"service":{"name":"web","vip":"192.0.2.1","protocol":"tcp","port":443,"mode":"gue"},"log":{"generations":[]}}`
	twoDocuments = oneDocument + "\n" + `{"service":{"name":"dns","vip":"2001:db8::1","protocol":"udp","port":53,"mode":"l2dsr"},"log":{}}` + "\n"
)

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

// FuzzValues: whatever is a value in etcd, of another version or of somebody else, ends as
// something that the rest of the director may believe.
func FuzzValues(f *testing.F) {
	backend := netip.MustParseAddr("10.0.0.1")
	f.Add("10.0.0.1", []byte(`{"backend":"10.0.0.1","at":"2026-01-02T03:04:05Z","connections":{}}`))
	f.Add("10.0.0.1", []byte(`{"backend":"10.0.0.2"}`))
	f.Add("::ffff:10.0.0.1", []byte(`{`))
	f.Add("x", []byte(`{"format":1,"revision":1,"sets":{"config":["a"],"x":null}}`))
	f.Fuzz(func(t *testing.T, key string, text []byte) {
		r := &Reports{prefix: "/weir/", latest: map[netip.Addr]model.AgentReport{}}
		latest := map[netip.Addr]model.AgentReport{}
		r.read(latest, map[netip.Addr]bool{backend: true}, "/weir/"+key, text)
		for at, report := range latest {
			if at != backend || report.Backend != backend || report.Check() != nil {
				t.Fatalf("a report about %s is kept as one of %s: %+v (%v)", report.Backend, at, report, report.Check())
			}
		}
		views := map[string]model.View{key: {}}
		readView(views, key, text)
		if root, err := readRoot(text); err == nil {
			if _, err := root.state(nil); err == nil && len(root.names()) > 0 {
				t.Fatal("a root is whole without its segments")
			}
		}
	})
}
