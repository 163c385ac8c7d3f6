package loads

import (
	"bytes"
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"weir.io/weir/internal/model"
	"weir.io/weir/lab/memlab"
)

var (
	ours   = newKey([keyLength]byte{1})
	older  = newKey([keyLength]byte{2})
	theirs = newKey([keyLength]byte{3})
	both   = keys{ours, older}
)

func target(vip string, port uint16, backend string) model.Target {
	return model.Target{
		Service: model.ServiceID{VIP: netip.MustParseAddr(vip), Protocol: model.TCP, Port: model.PortRange{First: port, Last: port}},
		Backend: netip.MustParseAddrPort(backend),
	}
}

// some is a report with loads of every kind.
func some() message {
	tenant := target("2001:db8::1", 443, "[2001:db8:1::11]:8443")
	tenant.Service.Segment = model.Segment{Kind: model.SegmentVXLAN, ID: 4711}
	all := target("2001:db8::2", 0, "10.0.1.12:0")
	return message{kind: kindReport, agent: 7, director: 9, sequence: 3, interval: 50 * time.Millisecond, loads: []model.Load{
		{Target: target("192.0.2.1", 80, "10.0.1.11:0"), Connections: 1 << 20, Queue: 128, Pressure: 1},
		{Target: tenant, Connections: 1},
		{Target: all},
		{Target: target("192.0.2.2", 80, "[2001:db8:1::12]:0"), Connections: 2, Queue: 2},
	}}
}

var asSent = cmp.Options{cmp.AllowUnexported(message{}), cmpopts.EquateEmpty(), cmp.Comparer(func(a, b netip.Addr) bool { return a == b }),
	cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })}

func TestMessages(t *testing.T) {
	for _, m := range []message{some(), {kind: kindReport, interval: time.Millisecond}, {kind: kindNumber, agent: 1, director: 2}} {
		for _, k := range both {
			got, by, err := decode(m.encode(&k), both)
			if err != nil || by.id != k.id {
				t.Fatalf("%+v is not read: %v", m, err)
			}
			if diff := cmp.Diff(m, got, asSent); diff != "" {
				t.Errorf("what is read is not what was written (-written +read):\n%s", diff)
			}
		}
	}
}

// As many loads as are sent at once fit in, whatever their addresses.
func TestLongestMessage(t *testing.T) {
	m := some()
	m.loads = nil
	for range loadsAtOnce {
		m.loads = append(m.loads, model.Load{Target: target("2001:db8::1", 443, "[2001:db8:1::11]:8443")})
	}
	b := m.encode(&ours)
	if len(b) > longest {
		t.Errorf("a report of %d loads has %d bytes, more than %d", loadsAtOnce, len(b), longest)
	}
	if got, _, err := decode(b, both); err != nil || len(got.loads) != loadsAtOnce {
		t.Errorf("%d of %d loads are read: %v", len(got.loads), loadsAtOnce, err)
	}
}

// sealed gives text a right MAC.
func sealed(text []byte) []byte {
	mac := ours.mac(text)
	return append(bytes.Clone(text), mac[:]...)
}

func TestRefusedMessages(t *testing.T) {
	m := some()
	good := m.encode(&ours)
	text := good[:len(good)-macLength]
	changed := func(at int, to ...byte) []byte {
		b := bytes.Clone(text)
		copy(b[at:], to)
		return sealed(b)
	}
	const firstLoad = headLength + fixedLength
	for _, test := range []struct {
		name string
		b    []byte
		want error
	}{
		{"nothing", nil, errShort},
		{"a head", good[:headLength], errShort},
		{"other bytes", bytes.Repeat([]byte{0x80}, 100), errForeign},
		{"another key", m.encode(&theirs), errKey},
		{"another key under our name", func() []byte {
			b := m.encode(&theirs)
			copy(b[4:], ours.id[:])
			return b
		}(), errForged},
		{"cut off", good[:len(good)-1], errForged},
		{"one byte more", append(bytes.Clone(good), 0), errForged},
		{"another version", changed(2, 2), errMalformed},
		{"another kind", changed(3, 3), errMalformed},
		{"a number with more behind", changed(3, kindNumber), errMalformed},
		{"a report without numbers", sealed(text[:headLength+4]), errMalformed},
		{"no interval", changed(headLength+8, 0, 0), errMalformed},
		{"fewer loads than are there", changed(headLength+10, 0, 3), errMalformed},
		{"more loads than are there", changed(headLength+10, 0, 5), errMalformed},
		{"more than there can be", changed(headLength+10, 0xff, 0xff), errMalformed},
		{"flags", changed(firstLoad, 4), errMalformed},
		{"a segment of no kind", changed(firstLoad+1, 9), errMalformed},
		{"no segment with a number", changed(firstLoad+4, 9), errMalformed},
		{"ports the wrong way round", changed(firstLoad+5, 1, 0, 0, 1), errMalformed},
		{"more wait than are open", changed(firstLoad+11, 0, 0, 0, 1), errMalformed},
	} {
		if _, _, err := decode(test.b, both); !errors.Is(err, test.want) {
			t.Errorf("%s: %v, want %v", test.name, err, test.want)
		}
	}
	for i := range good {
		bad := bytes.Clone(good)
		bad[i] ^= 1
		if _, _, err := decode(bad, both); err == nil {
			t.Errorf("it is read with another byte at %d", i)
		}
	}
}

func TestKeys(t *testing.T) {
	const one, two = "0101010101010101010101010101010101010101010101010101010101010101", "0202020202020202020202020202020202020202020202020202020202020202"
	for _, test := range []struct{ text, problem string }{
		{one, ""},
		{"# of 2026\n" + one + "\n\n  " + two + "\n", ""},
		{"", "there is no key in it"},
		{"# nothing\n", "there is no key in it"},
		{one + "\n" + two[:62], "line 2 is not a key: 64 hexadecimal digits, as openssl rand -hex 32 writes them"},
		{one[:63] + "x", "line 1 is not a key: 64 hexadecimal digits, as openssl rand -hex 32 writes them"},
		{one + "\n" + one, "line 2 is a key that is there before"},
		{"00" + one[2:] + "\n" + "03" + one[2:] + "\n" + "04" + one[2:] + "\n" + "05" + one[2:] + "\n" + "06" + one[2:], "has 5 keys, more than 4"},
	} {
		all, err := parseKeys(test.text)
		switch {
		case test.problem == "" && (err != nil || len(all) == 0 || all[0].secret != [keyLength]byte(bytes.Repeat([]byte{1}, keyLength))):
			t.Errorf("%q: %d keys, %v, want the first to be the one of the first line", test.text, len(all), err)
		case test.problem != "" && (err == nil || err.Error() != test.problem):
			t.Errorf("%q: %v, want %s", test.text, err, test.problem)
		}
	}
}

// FuzzDecode: whatever comes is refused, or written again as it was. Half of what it tries has a
// right MAC: nobody guesses one.
func FuzzDecode(f *testing.F) {
	m := some()
	good := m.encode(&ours)
	f.Add(good[:len(good)-macLength], true)
	f.Add(good, false)
	number := message{kind: kindNumber, agent: 1, director: 2}
	b := number.encode(&ours)
	f.Add(b[:len(b)-macLength], true)
	f.Fuzz(func(t *testing.T, b []byte, right bool) {
		if right {
			if len(b) >= headLength {
				copy(b[4:], ours.id[:])
			}
			b = sealed(b)
		}
		var m message
		var by *key
		var err error
		memlab.Bound{PerByte: 40, AtLeast: 1 << 20}.Check(t, len(b), func() { m, by, err = decode(b, both) })
		if err != nil {
			return
		}
		if !right && !by.made(b[:len(b)-macLength], b[len(b)-macLength:]) {
			t.Fatalf("% x is read without a right MAC", b)
		}
		if again := m.encode(by); !bytes.Equal(b, again) {
			t.Errorf("% x is read as %+v and written as % x", b, m, again)
		}
	})
}
