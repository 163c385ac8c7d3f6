package health

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"testing"

	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/net/icmp"

	"weir.io/weir/internal/model"
)

// FuzzSYNAnswer: whatever comes to a probe's socket answers it only with its number, and well
// only with the option.
func FuzzSYNAnswer(f *testing.F) {
	syn := handingSYN{from: netip.MustParseAddrPort("10.0.0.1:40000"), to: netip.MustParseAddrPort("10.0.0.2:443"), vip: netip.MustParseAddrPort("192.0.2.1:443"), sequence: 7}
	good := syn.bytes()
	binary.BigEndian.PutUint32(good[8:], syn.sequence+1)
	good[13] = flagSYN | flagACK
	for _, change := range []func(b []byte) []byte{
		func(b []byte) []byte { return b },
		func(b []byte) []byte { return b[:len(b)-1] },
		func(b []byte) []byte { return b[:tcpHeader] },
		func(b []byte) []byte { b[12] = 0; return b },
		func(b []byte) []byte { b[13] = flagRST | flagACK; return b },
		func(b []byte) []byte { b[11]++; return b },
		func(b []byte) []byte { b[tcpHeader+1] = 0; return b },
		func(b []byte) []byte { b[tcpHeader] = 0; return b },
	} {
		f.Add(change(bytes.Clone(good)))
	}
	option := syn.option()[:redirectLength]
	f.Fuzz(func(t *testing.T, segment []byte) {
		answers, err := syn.isAnsweredBy(segment)
		switch {
		case !answers && err != nil:
			t.Fatalf("it is no answer, and yet %v", err)
		case answers && binary.BigEndian.Uint32(segment[8:]) != syn.sequence+1:
			t.Fatal("it answers another SYN")
		case answers && err == nil && !bytes.Contains(segment[tcpHeader:int(segment[12]>>4)*4], option):
			t.Fatal("it is well without the option")
		}
	})
}

// FuzzRefusal: no ICMP message crashes its reader; one that refuses a tunnel quotes one.
func FuzzRefusal(f *testing.F) {
	f.Add(true, []byte{3, 3, 0, 0, 0, 0, 0, 0, 0x45, 0, 0, 40, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, 1, 2, 0x17, 0xc0, 0, 20, 0, 0})
	f.Add(true, []byte{3, 2, 0, 0, 0, 0, 0, 0, 0x4f, 0, 0, 40, 0, 0, 0, 0, 64, 4, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2})
	f.Add(false, append([]byte{1, 4, 0, 0, 0, 0, 0, 0, 0x60, 0, 0, 0, 0, 8, 17, 64}, append(make([]byte, 32), 1, 2, 0x17, 0xc0, 0, 8, 0, 0)...))
	f.Add(false, append([]byte{4, 1, 0, 0, 0, 0, 0, 6, 0x60, 0, 0, 0, 0, 8, 41, 64}, make([]byte, 32)...))
	f.Add(true, []byte{3, 3})
	f.Fuzz(func(t *testing.T, four bool, text []byte) {
		protocol := echo6.protocol
		if four {
			protocol = echo4.protocol
		}
		m, err := icmp.ParseMessage(protocol, text)
		if err != nil || !refusesTunnel(m) {
			return
		}
		body, _ := quoted(m)
		at := 6
		if four {
			at = 9
		}
		if p := body[at]; p != protocolUDP && p != protocolIPv4 && p != protocolIPv6 {
			t.Fatalf("a packet of protocol %d is taken for a tunnel", p)
		}
	})
}

// FuzzDNSAnswer: no answer crashes its reader; a good one has a code that was asked for.
func FuzzDNSAnswer(f *testing.F) {
	name := dnsmessage.MustNewName("weir.example.")
	q := &query{question: dnsmessage.Question{Name: name, Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET}, how: &model.HealthDNS{RCodes: []model.DNSCode{0, 3}}}
	for _, code := range []dnsmessage.RCode{dnsmessage.RCodeSuccess, dnsmessage.RCodeNameError, dnsmessage.RCodeRefused} {
		m := dnsmessage.Message{Header: dnsmessage.Header{ID: 1, Response: true, RCode: code}, Questions: []dnsmessage.Question{q.question}}
		text, err := m.Pack()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
		f.Add(text[:12])
		f.Add(text[:len(text)-2])
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		var parser dnsmessage.Parser
		header, err := parser.Start(text)
		if err != nil {
			return
		}
		if q.judge(&parser, header) == nil && header.RCode != 0 && header.RCode != 3 {
			t.Fatalf("code %d is well", header.RCode)
		}
	})
}
