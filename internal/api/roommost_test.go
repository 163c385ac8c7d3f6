package api

import (
	"errors"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"testing"

	"weir.io/weir/internal/model"
)

// visitors are the two ends of connections to a room.
type visitors struct {
	t      *testing.T
	room   *room
	accept chan net.Conn
}

func newVisitors(t *testing.T, most int) *visitors {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	v := &visitors{t, newRoom(listener, most), make(chan net.Conn)}
	t.Cleanup(func() { v.room.Close() })
	go func() {
		defer close(v.accept)
		for {
			conn, err := v.room.Accept()
			if err != nil {
				return
			}
			v.accept <- conn
		}
	}()
	return v
}

func (v *visitors) dial(from string) net.Conn {
	v.t.Helper()
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	conn, err := dialer.Dial("tcp", v.room.Addr().String())
	if err != nil {
		v.t.Fatal(err)
	}
	v.t.Cleanup(func() { conn.Close() })
	return conn
}

// come opens a connection and waits until it has its place.
func (v *visitors) come(from string, known bool) (far net.Conn, here *guest) {
	v.t.Helper()
	far = v.dial(from)
	here = (<-v.accept).(*guest)
	here.known.Store(known)
	return far, here
}

// stays reports whether a connection still carries bytes.
func stays(far net.Conn, here *guest) bool {
	_, wrote := here.Write([]byte{1})
	_, read := io.ReadFull(far, make([]byte, 1))
	return errors.Join(wrote, read) == nil
}

// When all places are taken a stranger goes, the oldest of the address that has most.
func TestRoomOfStrangers(t *testing.T) {
	v := newVisitors(t, 5)
	type held struct {
		far  net.Conn
		here *guest
		goes bool
	}
	var all []held
	for _, one := range []struct {
		from  string
		known bool
		goes  bool
	}{
		{"127.0.0.2", true, false}, // of a client that was here first
		{"127.0.0.3", false, false},
		{"127.0.0.4", false, true},
		{"127.0.0.4", false, true},
		{"127.0.0.4", false, false},
		{"127.0.0.5", false, false}, // in place of the first of .4
		{"127.0.0.4", false, false}, // in place of the second
	} {
		far, here := v.come(one.from, one.known)
		all = append(all, held{far, here, one.goes})
	}
	for i, h := range all {
		if stays(h.far, h.here) == h.goes {
			t.Errorf("connection %d from %s: it goes: %v, want %v", i, h.here.from, !h.goes, h.goes)
		}
	}
}

// One client leaves as many connections to others as it has; an administrator finds room until there is none.
func TestClientsShareARoom(t *testing.T) {
	v := newVisitors(t, 8)
	keeps := func(c Caller) bool {
		_, here := v.come("127.0.0.2", false)
		return v.room.claim(here, c)
	}
	busy, calm, admin := Caller{Name: "busy", Role: model.RoleRead}, Caller{Name: "calm", Role: model.RoleRead}, Caller{Name: "root", Role: model.RoleAdmin}
	for n, one := range []struct {
		of   Caller
		want bool
	}{{busy, true}, {busy, true}, {busy, true}, {busy, true}, {busy, false}, {calm, true}, {calm, true}, {calm, false}, {busy, false}, {admin, true}, {admin, true}} {
		if got := keeps(one.of); got != one.want {
			t.Errorf("connection %d, of %s: it keeps it: %v, want %v", n, one.of.Name, got, one.want)
		}
	}
}

// The log says once how many connections had to go.
func TestCrowdsAreTold(t *testing.T) {
	var text strings.Builder
	v := newVisitors(t, 1)
	r := &Remote{log: slog.New(slog.NewTextHandler(&text, nil)), listeners: map[listening]*served{{at: netip.MustParseAddrPort("10.0.0.2:6083")}: {room: v.room}}}
	r.logCrowds()
	for range 3 {
		v.come("127.0.0.2", false)
	}
	r.logCrowds()
	r.logCrowds()
	if got := text.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, "address=10.0.0.2:6083 ended=2") {
		t.Errorf("the log says %q", got)
	}
}

// If all clients are known, the next one waits until one of them goes, and is not forgotten.
func TestRoomOfClients(t *testing.T) {
	v := newVisitors(t, 2)
	_, first := v.come("127.0.0.2", true)
	second, here := v.come("127.0.0.2", true)
	third := v.dial("127.0.0.3")
	select {
	case <-v.accept:
		t.Fatal("there is a third place of two")
	default:
	}
	if !stays(second, here) {
		t.Error("a client's connection had to go")
	}
	first.Close()
	got := (<-v.accept).(*guest)
	if got.known.Store(true); !stays(third, got) {
		t.Error("who has waited has no connection")
	}
	v.dial("127.0.0.4")
	v.room.Close() // also ends the wait of the fourth one
	if _, more := <-v.accept; more {
		t.Error("a connection has come after the end")
	}
}
