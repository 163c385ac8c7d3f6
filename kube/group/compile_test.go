package group

import (
	"bytes"
	"compress/flate"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"weir.io/weir/internal/history"
	"weir.io/weir/internal/model"
)

var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

func service(vip string, backends int) model.Service {
	s := model.Service{Name: "default/web/80-tcp", VIP: netip.MustParseAddr(vip), Protocol: model.TCP, Port: model.PortRange{First: 80, Last: 80}, Mode: model.NAT, SNAT: true,
		Retention: model.Duration(time.Minute), MaxRetention: model.Duration(time.Hour)}
	for i := range backends {
		b := model.NewBackend()
		b.Name, b.Address, b.Port = fmt.Sprintf("web-7d4b9c6f5d-%05d", i), netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}), 8080
		s.Backends = append(s.Backends, b)
	}
	return s
}

func numbers(d model.Document) (list []uint64) {
	for _, g := range d.Log.Generations {
		list = append(list, g.Number)
	}
	return list
}

// Each change of a service's backends is a new generation. It is announced before it places
// connections, and leaves when nothing can need it any more, even without another change.
func TestAdvance(t *testing.T) {
	one := func(n int) []model.Service { return []model.Service{service("203.0.113.1", n)} }
	var h History
	first := h.Advance(nil, one(2), 5*time.Second, noon)
	if got := numbers(first[0]); !slices.Equal(got, []uint64{1}) || !Due(first, noon).IsZero() {
		t.Errorf("a new service has the generations %v, and something due at %v", got, Due(first, noon))
	}
	if same := h.Advance(first, one(2), 5*time.Second, noon.Add(time.Hour)); !slices.Equal(numbers(same[0]), []uint64{1}) {
		t.Errorf("without a change there are the generations %v", numbers(same[0]))
	}
	changed := noon.Add(10 * time.Second)
	second := h.Advance(first, one(3), 5*time.Second, changed)
	if got := numbers(second[0]); !slices.Equal(got, []uint64{2, 1}) {
		t.Fatalf("after a change there are the generations %v", got)
	}
	if from := second[0].Log.Generations[0].From; !from.Equal(changed.Add(5 * time.Second)) {
		t.Errorf("the new one places connections from %v, want 5s after %v", from, changed)
	}
	if coming, _ := history.Coming(second[0].Log, changed, changed.Add(time.Second)); coming != 1 {
		t.Errorf("a second later %d generations are coming, want 1", coming)
	}
	due := Due(second, changed)
	if want := changed.Add(65 * time.Second); !due.Equal(want) {
		t.Errorf("the old one is due at %v, want %v: the notice and the drain after the change", due, want)
	}
	for at, want := range map[time.Time][]uint64{due.Add(-time.Second): {2, 1}, due: {2}} {
		if got := numbers(h.Advance(second, one(3), 5*time.Second, at)[0]); !slices.Equal(got, want) {
			t.Errorf("at %v there are the generations %v, want %v", at, got, want)
		}
	}
	// A backend that is gone takes nothing along that it alone had.
	if got := numbers(h.Advance(second, one(1), 0, due)[0]); !slices.Equal(got, []uint64{3, 2}) {
		t.Errorf("after backends have gone there are the generations %v", got)
	}
}

// A service with another VIP is another service and has its own history, and the others keep
// theirs.
func TestAdvanceKeepsHistoriesApart(t *testing.T) {
	var h History
	a, b := service("203.0.113.1", 2), service("203.0.113.2", 2)
	b.Name += "-b"
	documents := h.Advance(h.Advance(nil, []model.Service{a}, 0, noon), []model.Service{b, service("203.0.113.1", 3)}, 0, noon.Add(time.Second))
	if !slices.Equal(numbers(documents[0]), []uint64{1}) || !slices.Equal(numbers(documents[1]), []uint64{2, 1}) {
		t.Errorf("the generations are %v and %v", numbers(documents[0]), numbers(documents[1]))
	}
}

// A Service is read as it was written, and takes little room: also the longest history, of
// 1,000 backends that all change one by one.
func TestEncode(t *testing.T) {
	var documents []model.Document
	var h History
	s := service("203.0.113.1", 1000)
	for i := range 60 {
		s.Backends = slices.Clone(s.Backends)
		s.Backends[i*16].Address = netip.AddrFrom4([4]byte{10, 9, byte(i), 1})
		documents = h.Advance(documents, []model.Service{s}, 0, noon.Add(time.Duration(i)*time.Second))
	}
	c, err := Encode("default/web", 3, 7, documents)
	if err != nil {
		t.Fatal(err)
	}
	if c.Name != "default/web" || c.Set != 3 || c.Revision != 7 || c.Backends != 1000 || !slices.Equal(c.VIPs, []string{"203.0.113.1"}) ||
		int(c.Generations) != len(documents[0].Log.Generations) || c.Generation != int64(documents[0].Log.Generations[0].Number) {
		t.Errorf("it is written as %+v", c)
	}
	if len(documents[0].Log.Generations) < 20 {
		t.Errorf("there are %d generations, which is no long history", len(documents[0].Log.Generations))
	}
	if size := SizeOf(&c); size > Full {
		t.Errorf("the longest history of 1,000 backends takes %d bytes, and %d are the most that is written in one object", size, Full)
	}
	back, err := Decode(&c)
	if err != nil {
		t.Fatal(err)
	}
	again, err := Encode("default/web", 3, 7, back)
	if err != nil || string(again.Documents) != string(c.Documents) {
		t.Errorf("what is read is not what was written: %v", err)
	}
	for _, damage := range [][]byte{nil, c.Documents[:len(c.Documents)/2], []byte("none")} {
		c.Documents = damage
		if _, err := Decode(&c); err == nil {
			t.Errorf("damaged documents of %d bytes are read", len(damage))
		}
	}
}

// A small cluster has one object, a large one as many as it needs. None is larger than the API
// server takes.
func TestPlace(t *testing.T) {
	for _, test := range []struct {
		services, size, objects int
	}{{1, 700, 1}, {90, 700, 1}, {100, 700, 2}, {5000, 700, 54}, {20, 200 << 10, 20}, {3, 2 << 20, 3}} {
		sizes := map[int]int{}
		for range test.services {
			sizes[Place(test.size, sizes)] += test.size
		}
		most := 0
		for _, size := range sizes {
			most = max(most, size)
		}
		if len(sizes) != test.objects || most > max(Full, test.size) {
			t.Errorf("%d Services of %d bytes are in %d objects, the largest of %d, want %d", test.services, test.size, len(sizes), most, test.objects)
		}
	}
}

// What a later version has written is told from damaged text by its number, and by fields or names
// that this version does not know.
func TestDecodeNewer(t *testing.T) {
	var h History
	documents := h.Advance(nil, []model.Service{service("203.0.113.1", 2)}, 0, noon)
	c, err := Encode("default/web", 0, 1, documents)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Decode(&c); err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(documents)
	if err != nil {
		t.Fatal(err)
	}
	replaced := func(old, by string) string {
		if !strings.Contains(string(text), old) {
			t.Fatalf("documents have no %s: %s", old, text)
		}
		return strings.Replace(string(text), old, by, 1)
	}
	for what, row := range map[string]struct {
		text  string
		newer bool
	}{
		"a later format":               {`{"format": 2, "what": ["ever"]}`, true},
		"an unknown key":               {replaced(`"log":{`, `"since":1,"log":{`), true},
		"an unknown key of a log":      {replaced(`"generations":[{`, `"generations":[{"since-when":1,`), true},
		"an unknown mode":              {replaced(`"mode":"nat"`, `"mode":"quantum"`), true},
		"no format at all":             {`{}`, false},
		"format 1 in an object":        {`{"format": 1, "documents": []}`, false},
		"half of it":                   {string(text[:len(text)/2]), false},
		"a number for a name":          {replaced(`"mode":"nat"`, `"mode":7`), false},
		"an unknown key, and no log":   {`[{"service": {}, "a": 1}]`, false},
		"an unknown key, and no slots": {strings.Replace(replaced(`"log":{`, `"since":1,"log":{`), `"slots":`, `"slots":1,"was":`, 1), false},
	} {
		c.Documents = compressed(t, row.text)
		if _, err := Decode(&c); err == nil || errors.Is(err, ErrNewer) != row.newer {
			t.Errorf("%s is read with error %v; of a newer version: %v", what, err, row.newer)
		}
	}
}

func compressed(t *testing.T, text string) []byte {
	t.Helper()
	var b bytes.Buffer
	w, err := flate.NewWriter(&b, flate.BestSpeed)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write([]byte(text)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}
