package agent

import (
	"net"
	"net/netip"
	"reflect"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weir.io/weir/internal/model"
)

// meteredService is a service at a VIP on this host.
func meteredService(vip netip.Addr, port uint16) model.Service {
	return model.Service{Name: "a", VIP: vip, Protocol: model.TCP, Port: model.PortRange{First: port, Last: port}}
}

// A listening socket whose queue is full says how many it has dropped, and to which services.
func TestListenersSayWhatTheyDrop(t *testing.T) {
	asked, err := openSockets()
	if err != nil {
		t.Fatal(err)
	}
	defer asked.close()
	for _, test := range []struct {
		name, network, at string
		serves            map[string]bool
	}{
		{"an address", "tcp4", "127.0.0.1:0", map[string]bool{"127.0.0.1": true, "127.0.0.2": false, "::1": false}},
		{"all of IPv4", "tcp4", "0.0.0.0:0", map[string]bool{"127.0.0.1": true, "::1": false}},
		{"all of both families", "tcp", "[::]:0", map[string]bool{"127.0.0.1": true, "::1": true}},
		{"all of IPv6", "tcp6", "[::]:0", map[string]bool{"127.0.0.1": false, "::1": true}},
	} {
		t.Run(test.name, func(t *testing.T) {
			open, err := net.Listen(test.network, test.at)
			if err != nil {
				t.Fatal(err)
			}
			defer open.Close()
			shorten := func(fd uintptr) { err = unix.Listen(int(fd), 0) } // room for one
			raw, rawErr := open.(*net.TCPListener).SyscallConn()
			if rawErr != nil || raw.Control(shorten) != nil || err != nil {
				t.Fatal("shorten the queue:", rawErr, err)
			}
			port := uint16(open.Addr().(*net.TCPAddr).Port)
			find := func() (found listener) {
				if err := asked.listeners(func(l listener) {
					if l.at.Port() == port {
						found = l
					}
				}); err != nil {
					t.Fatal(err)
				}
				return found
			}
			before := find()
			for vip, want := range test.serves {
				s := meteredService(netip.MustParseAddr(vip), port)
				if id := s.ID(); before.serves(&id) != want {
					t.Errorf("the socket serves %s: %v, want %v", vip, !want, want)
				}
				s.Port = model.PortRange{First: port + 1, Last: port + 9}
				if id := s.ID(); before.serves(&id) {
					t.Errorf("the socket of port %d serves %v", port, id)
				}
			}
			to := "127.0.0.1"
			if test.network == "tcp6" {
				to = "::1"
			}
			for deadline := time.Now().Add(20 * time.Second); find().drops == before.drops; {
				if time.Now().After(deadline) {
					t.Fatal("nobody accepts, and nothing is dropped")
				}
				dialer := net.Dialer{Timeout: 20 * time.Millisecond}
				if conn, err := dialer.Dial("tcp", netip.AddrPortFrom(netip.MustParseAddr(to), port).String()); err == nil {
					defer conn.Close()
				}
			}
		})
	}
}

func TestStrainIsMeasured(t *testing.T) {
	vip := netip.MustParseAddr("192.0.2.1")
	web, other := meteredService(vip, 80), meteredService(vip, 81)
	segment := web
	segment.Segment = model.Segment{Kind: model.SegmentVLAN, ID: 7}
	away := meteredService(netip.MustParseAddr("192.0.2.9"), 80)
	datagrams := meteredService(vip, 80)
	datagrams.Protocol = model.UDP
	all := []model.Service{web, other, segment, away, datagrams}
	is := func(s model.Service) identity { return identity{s.VIP, s.Protocol, s.Port} }
	socket := func(cookie byte, at string, drops uint32) listener {
		return listener{protocol: model.TCP, cookie: [diagCookieLength]byte{cookie}, at: netip.MustParseAddrPort(at), drops: drops}
	}
	receiver := func(cookie byte, at string, drops uint32) listener {
		l := socket(cookie, at, drops)
		l.protocol = model.UDP
		return l
	}
	var m strainMeter
	now := time.Unix(1000, 0)
	look := func(refused [2]uint64, listeners ...listener) map[model.ServiceID]model.Signal {
		now = now.Add(5 * time.Second)
		return m.measure(all, map[identity]uint64{is(web): refused[0], is(other): refused[1], is(datagrams): 0}, listeners, now)
	}
	for _, step := range []struct {
		name string
		got  map[model.ServiceID]model.Signal
		want map[model.ServiceID][2]float64
	}{
		{"the first look", look([2]uint64{70, 3}, socket(1, "192.0.2.1:80", 100)), nil},
		{"nothing new", look([2]uint64{70, 3}, socket(1, "192.0.2.1:80", 100)), nil},
		{"refused and full", look([2]uint64{70, 8}, socket(1, "192.0.2.1:80", 111)), map[model.ServiceID][2]float64{web.ID(): {0, 2.2}, segment.ID(): {0, 2.2}, other.ID(): {1, 0}}},
		{"another socket for all addresses", look([2]uint64{70, 8}, socket(1, "192.0.2.1:80", 111), socket(2, "[::]:81", 50)), map[model.ServiceID][2]float64{other.ID(): {0, 10}}},
		{"a counter that is full", look([2]uint64{70, 8}, socket(1, "192.0.2.1:80", 1<<32-5), socket(2, "[::]:81", 50)), map[model.ServiceID][2]float64{web.ID(): {0, (1<<32 - 116) / 5}, segment.ID(): {0, (1<<32 - 116) / 5}}},
		{"and begins again", look([2]uint64{70, 8}, socket(1, "192.0.2.1:80", 5), socket(2, "[::]:81", 50)), map[model.ServiceID][2]float64{web.ID(): {0, 2}, segment.ID(): {0, 2}}},
		{"datagrams that find no room", look([2]uint64{70, 8}, receiver(3, "0.0.0.0:80", 30), receiver(4, "192.0.2.9:80", 30)), map[model.ServiceID][2]float64{datagrams.ID(): {0, 6}}},
		{"a service that is new again", look([2]uint64{5, 8}), map[model.ServiceID][2]float64{web.ID(): {1, 0}, segment.ID(): {1, 0}}},
	} {
		want := map[model.ServiceID]model.Signal{}
		for id, rates := range step.want {
			want[id] = model.Signal{ServiceID: id, Refused: rates[0], Overflows: rates[1]}
		}
		if len(step.got)+len(want) > 0 && !reflect.DeepEqual(step.got, want) {
			t.Errorf("%s: the signs are %v, want %v", step.name, step.got, want)
		}
	}
}

func TestSignsThatAreNews(t *testing.T) {
	id := meteredService(netip.MustParseAddr("192.0.2.1"), 80)
	sign := func(refused, overflows float64) map[model.ServiceID]model.Signal {
		if refused+overflows == 0 {
			return nil
		}
		return map[model.ServiceID]model.Signal{id.ID(): {ServiceID: id.ID(), Refused: refused, Overflows: overflows}}
	}
	for _, test := range []struct {
		before, now [2]float64
		news        bool
	}{
		{news: false},
		{now: [2]float64{0.4, 0.4}, news: false},
		{now: [2]float64{0.5, 0}, news: true},
		{now: [2]float64{0, 3}, news: true},
		{before: [2]float64{0, 3}, news: true},
		{before: [2]float64{0, 0.2}, news: false},
		{before: [2]float64{0, 3}, now: [2]float64{0, 6}, news: false},
		{before: [2]float64{0, 3}, now: [2]float64{0, 6.1}, news: true},
		{before: [2]float64{0, 6.1}, now: [2]float64{0, 3}, news: true},
		{before: [2]float64{4, 0}, now: [2]float64{0, 4}, news: true},
	} {
		if got := otherSigns(sign(test.before[0], test.before[1]), sign(test.now[0], test.now[1])); got != test.news {
			t.Errorf("after %v, %v is news: %v, want %v", test.before, test.now, got, test.news)
		}
	}
}

// A UDP socket that nobody reads says how many datagrams it has dropped. One that is connected
// serves a client, and not a service.
func TestReceiversSayWhatTheyDrop(t *testing.T) {
	asked, err := openSockets()
	if err != nil {
		t.Fatal(err)
	}
	defer asked.close()
	open, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	client, err := net.Dial("udp4", open.LocalAddr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	find := func(at net.Addr) (found listener, is bool) {
		if err := asked.receivers(func(l listener) {
			if l.at.String() == at.String() {
				found, is = l, true
			}
		}); err != nil {
			t.Fatal(err)
		}
		return found, is
	}
	before, is := find(open.LocalAddr())
	if !is {
		t.Fatal("a UDP socket is not listed")
	}
	if _, is := find(client.LocalAddr()); is {
		t.Error("a connected UDP socket is listed")
	}
	s := meteredService(netip.MustParseAddr("127.0.0.1"), before.at.Port())
	if id := s.ID(); before.serves(&id) {
		t.Error("a UDP socket serves TCP")
	}
	s.Protocol = model.UDP
	if id := s.ID(); !before.serves(&id) {
		t.Error("a UDP socket does not serve UDP at its address")
	}
	datagram := make([]byte, 1400)
	for deadline := time.Now().Add(20 * time.Second); ; {
		if now, _ := find(open.LocalAddr()); now.drops > before.drops {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("nobody reads, and nothing is dropped")
		}
		for range 100 {
			if _, err := client.Write(datagram); err != nil {
				t.Fatal(err)
			}
		}
	}
}
