package group

import (
	"net/netip"
	"strings"
	"testing"

	"weir.io/weir/internal/etcdclient"
	"weir.io/weir/internal/model"
	"weir.io/weir/lab/memlab"
)

// readBound is what may be allocated to read a value, sets of slots included.
var readBound = memlab.Bound{PerByte: 300, AtLeast: 64 << 20}

// FuzzMemory: whatever is in etcd, to read it takes memory by its length.
func FuzzMemory(f *testing.F) {
	f.Add([]byte(`{"backend":"10.0.0.1","services":[{"used":"1048576 gaps "},{"used":"1048576 gaps "}]}`))
	f.Add([]byte(`{"process":"a","vips":["192.0.2.1",""],"up":["192.0.2.1:80","",""]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		readBound.Check(t, 5*len(text), func() {
			_, _ = readView("", text)
			_, _ = readOwners(membersKey+"a", text)
			readReport(model.HostAddress{Address: netip.MustParseAddr("10.0.0.1")}, text)
		})
	})
}

// Reports of agents that write of all backends take no more than they may; the others say nothing.
func TestManyReports(t *testing.T) {
	backend, held, told := model.HostAddress{Address: netip.MustParseAddr("10.0.0.0")}, newHeldReports(), 0
	services := strings.Repeat(`{"used":"1048576 gaps "},`, 100)
	rooms := 0
	for range 100 {
		backend.Address = backend.Address.Next()
		report := readReport(backend, []byte(`{"backend":"`+backend.Address.String()+`","services":[`+services[:len(services)-1]+`]}`))
		if len(report.Services) != 100 {
			t.Fatalf("a report of 100 services is read as %+v", report)
		}
		if held.put(report); !held.noRoom[backend] {
			rooms++
		}
		told += len(held.of[backend].Services)
	}
	if held.bytes > mostReports || len(held.of) != 100 || rooms < 20 || rooms > 60 || told != 100*rooms {
		t.Errorf("%d bytes of %d reports are kept, %d of them as they are", held.bytes, len(held.of), rooms)
	}
	listed := &listed{}
	r := &Reports{client: &etcdclient.Client{Options: etcdclient.Options{Warn: listed.warn}}, latest: held}
	if r.warn(); !strings.Contains(listed.of(model.ProblemReports, ""), "take as much memory as they may") {
		t.Errorf("that there is no room for reports is listed as %q", listed.of(model.ProblemReports, ""))
	}
	for b := range held.of {
		held.remove(b)
	}
	if r.warn(); listed.of(model.ProblemReports, "") != "" {
		t.Errorf("when there is room again, listed is %q", listed.of(model.ProblemReports, ""))
	}
	if held.bytes != 0 {
		t.Errorf("%d bytes are kept of no reports", held.bytes)
	}
}

// FuzzValues: whatever is a value in etcd, of another version or of somebody else, ends as
// something that the rest of the director may believe.
func FuzzValues(f *testing.F) {
	backend := netip.MustParseAddr("10.0.0.1")
	f.Add("10.0.0.1", []byte(`{"backend":"10.0.0.1","at":"2026-01-02T03:04:05Z","connections":{}}`))
	f.Add("10.0.0.1", []byte(`{"backend":"10.0.0.2"}`))
	f.Add("vlan:100/10.0.0.1", []byte(`{"backend":"10.0.0.1","segment":"vlan:100","taken":"2026-01-02T03:04:05Z","services":[]}`))
	f.Add("none/10.0.0.1", []byte(`{"backend":"10.0.0.1"}`))
	f.Add("::ffff:10.0.0.1", []byte(`{`))
	f.Add(membersKey+"x", []byte(`{"process":"a","vips":["192.0.2.1",""]}`))
	f.Fuzz(func(t *testing.T, key string, text []byte) {
		r := &Reports{prefix: "/weir/", latest: newHeldReports(), client: &etcdclient.Client{}}
		latest := newHeldReports()
		inSegment := model.HostAddress{Segment: model.Segment{Kind: model.SegmentVLAN, ID: 100}, Address: backend}
		followed := map[model.HostAddress]bool{{Address: backend}: true, inSegment: true}
		r.read(&latest, followed, "/weir/"+key, text)
		for at, report := range latest.of {
			if !followed[at] || report.At() != at || report.Check() != nil {
				t.Fatalf("a report about %s is kept as one of %s: %+v (%v)", report.Backend, at, report, report.Check())
			}
		}
		_, _ = readView(key, text)
		_, _ = readOwners(key, text)
	})
}
