package health

import (
	"context"
	"encoding/binary"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"weir.io/weir/internal/model"
)

// askRedirect sends one probe of redirection from the director.
func askRedirect(t *testing.T, r *redirects, to string) *Failure {
	t.Helper()
	at := netip.MustParseAddrPort(to)
	a := &attempt{timeout: time.Second, way: model.Way{To: at}, check: &model.Check{To: at, Target: model.Target{
		Redirect: true, Service: model.ServiceID{VIP: netip.MustParseAddr("192.0.2.10"), Protocol: model.TCP, Port: model.PortRange{First: 80, Last: 80}},
	}}}
	ctx, cancel := context.WithTimeout(t.Context(), a.timeout)
	defer cancel()
	if err := r.probe(ctx, a); err != nil {
		return explain(err, a.at, a.timeout)
	}
	return nil
}

// Hosts without an agent answer probes of redirection, and say nothing by that; their servers
// see no connection, and nobody can connect to where the answers come in.
func TestNobodyRedirects(t *testing.T) {
	director, s := newLab(t)
	listener, err := s.host.Listen("tcp", ":80")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	accepted := make(chan string, 100)
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			accepted <- conn.RemoteAddr().String()
			_ = conn.Close()
		}
	}()
	var r redirects
	defer r.ports.close()
	for _, test := range []struct {
		to     string
		reason Reason
		detail string
	}{
		{"10.0.0.2:80", Unechoed, "a SYN-ACK without the option"},
		{"[2001:db8::2]:80", Unechoed, "a SYN-ACK without the option"},
		{"10.0.0.2:81", Unechoed, "an RST without the option"},
		{"[2001:db8::2]:81", Unechoed, "an RST without the option"},
	} {
		var found *Failure
		if err := director.Do(func() error {
			// Neighbors answer in a moment, of a loaded machine a late one.
			for range 10 {
				if found = askRedirect(t, &r, test.to); found == nil || found.Reason == test.reason {
					break
				}
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		if found == nil || found.Reason != test.reason || !strings.Contains(found.Detail, test.detail) {
			t.Errorf("%s: %+v, want %s: %s", test.to, found, test.reason, test.detail)
		}
	}
	for network, from := range map[string]string{"tcp4": "10.0.0.1", "tcp6": "2001:db8::1"} {
		port := r.ports.listeners[network].Addr().(interface{ AddrPort() netip.AddrPort }).AddrPort().Port()
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		if conn, err := s.host.DialContext(ctx, "tcp", netip.AddrPortFrom(netip.MustParseAddr(from), port).String()); err == nil {
			conn.Close()
			t.Errorf("%s port %d takes connections", network, port)
		}
		cancel()
	}
	// What came before this one was accepted before it.
	conn, err := director.DialContext(t.Context(), "tcp", "10.0.0.2:80")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if first := <-accepted; first != conn.LocalAddr().String() {
		t.Errorf("the server has accepted a connection from %s, of a probe", first)
	}
}

// An answer counts by the number that it acknowledges, and is a good one by the option.
func TestAnswersToHandingSYN(t *testing.T) {
	syn := handingSYN{
		from: netip.MustParseAddrPort("10.0.0.1:1000"), to: netip.MustParseAddrPort("10.0.0.2:80"), vip: netip.MustParseAddrPort("192.0.2.10:443"), sequence: 0xffffffff,
	}
	other := syn
	other.vip = netip.MustParseAddrPort("192.0.2.10:80")
	answer := func(flags byte, options ...[]byte) []byte {
		b := append(make([]byte, tcpHeader), slices.Concat(options...)...)
		binary.BigEndian.PutUint32(b[8:], syn.sequence+1)
		b[12], b[13] = byte(len(b)/4<<4), flags
		return b
	}
	mss := []byte{2, 4, 5, 0xb4}
	late := answer(flagSYN|flagACK, syn.option())
	late[11]++
	for name, test := range map[string]struct {
		segment []byte
		answers bool
		want    Reason
	}{
		"SYN-ACK":                    {answer(flagSYN|flagACK, mss, syn.option()), true, well},
		"RST":                        {answer(flagRST|flagACK, syn.option()), true, well},
		"without the option":         {answer(flagSYN|flagACK, mss), true, Unechoed},
		"of another VIP":             {answer(flagSYN|flagACK, mss, other.option()), true, Unechoed},
		"behind the end":             {answer(flagSYN|flagACK, []byte{0, 0, 0, 0}, syn.option()), true, Unechoed},
		"behind an option too short": {answer(flagSYN|flagACK, []byte{2, 1, 1, 1}, syn.option()), true, Unechoed},
		"behind one too long":        {answer(flagSYN|flagACK, []byte{1, 1, 2, 77}, syn.option()), true, Unechoed},
		"cut short":                  {answer(flagSYN|flagACK, syn.option())[:30], true, Malformed},
		"to another SYN":             {late, false, well},
		"no header":                  {answer(flagSYN)[:19], false, well},
	} {
		answers, err := syn.isAnsweredBy(test.segment)
		var reason Reason
		if err != nil {
			reason = explain(err, handing, time.Second).Reason
		}
		if answers != test.answers || reason != test.want {
			t.Errorf("%s: %v and %q, want %v and %q", name, answers, reason, test.answers, test.want)
		}
	}
}
