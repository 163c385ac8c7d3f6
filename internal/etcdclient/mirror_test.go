package etcdclient

import (
	"strconv"
	"testing"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// What this process has written itself may be known before older changes of the same key come from
// etcd: they change nothing.
func TestMirrorKeepsTheNewest(t *testing.T) {
	changes := 0
	m := NewMirror(nil, "/weir/", func(_ string, text []byte) (int, error) { return strconv.Atoi(string(text)) }, func() { changes++ })
	event := func(kind mvccpb.Event_EventType, value string, revision int64) {
		m.take([]*clientv3.Event{{Type: kind, Kv: &mvccpb.KeyValue{Key: []byte("/weir/a"), Value: []byte(value), ModRevision: revision}}})
	}
	says := func(want int, there bool) {
		t.Helper()
		if got, is := m.Get("a"); is != there || is && got != want {
			t.Errorf("after %d changes there is %d (%v), want %d (%v)", changes, got, is, want, there)
		}
	}
	m.Wrote("/weir/a", []byte("5"), 1, 5)
	event(mvccpb.Event_PUT, "4", 4)
	says(5, true)
	event(mvccpb.Event_PUT, "6", 6)
	says(6, true)
	m.Gone("/weir/a", 8)
	event(mvccpb.Event_PUT, "7", 7)
	says(0, false)
	event(mvccpb.Event_PUT, "no number", 9)
	says(0, false)
	event(mvccpb.Event_PUT, "10", 10)
	event(mvccpb.Event_DELETE, "", 11)
	says(0, false)
	if changes != 8 {
		t.Errorf("%d changes are noticed, want 8", changes)
	}
}
