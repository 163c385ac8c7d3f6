package segments

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"weir.io/weir/internal/model"
)

// sink is a datapath's part that takes what was learned.
type sink struct {
	mu    sync.Mutex
	hosts map[model.Segment][]model.SegmentHost
	vnis  map[model.Segment]uint32
	macs  map[model.Segment][]model.SegmentMAC
	vteps []netip.Addr
	calls int
	err   error
}

// SetHosts implements Sink.
func (s *sink) SetHosts(hosts map[model.Segment][]model.SegmentHost) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls++
	if s.err == nil {
		s.hosts = maps.Clone(hosts)
	}
	return s.err
}

// SetVNIs implements Sink.
func (s *sink) SetVNIs(vnis map[model.Segment]uint32) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		s.vnis = vnis
	}
	return s.err
}

// SetMACs implements Sink.
func (s *sink) SetMACs(macs map[model.Segment][]model.SegmentMAC) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.macs = macs
	return nil
}

// SetVTEPs implements Sink.
func (s *sink) SetVTEPs(vteps []netip.Addr) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.vteps = vteps
	return nil
}

// has writes what the sink has: "vxlan:1 10.0.0.1 at 192.0.2.1".
func (s *sink) has() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []string
	for id, hosts := range s.hosts {
		for _, h := range hosts {
			all = append(all, fmt.Sprintf("%s %v at %v", id, h.Address, h.VTEP))
		}
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}

var (
	red   = model.Segment{Kind: model.SegmentVXLAN, ID: 1}
	green = model.Segment{Kind: model.SegmentVXLAN, ID: 2}
)

// host is one with the address 10.0.0.N, at the VTEP 192.0.2.M.
func host(n, m byte) model.SegmentHost {
	return model.SegmentHost{Address: netip.AddrFrom4([4]byte{10, 0, 0, n}), MAC: model.MAC{2, 0, 0, 0, 0, n}, VTEP: netip.AddrFrom4([4]byte{192, 0, 2, m})}
}

func said(id model.Segment, hosts ...model.SegmentHost) Said {
	return Said{Hosts: map[model.Segment][]model.SegmentHost{id: hosts}}
}

func in(id model.Segment, hosts ...model.SegmentHost) []model.SegmentHosts {
	return []model.SegmentHosts{{ID: id, Hosts: hosts}}
}

func open(t *testing.T, dir string) (*Segments, *sink) {
	t.Helper()
	to := &sink{}
	return New(Deps{Sink: to, Directory: dir, Log: slog.New(slog.DiscardHandler)}), to
}

func (s *sink) wants(t *testing.T, when, want string) {
	t.Helper()
	if got := s.has(); got != want {
		t.Errorf("%s the datapath has %q, want %q", when, got, want)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Of each address the first source counts, whatever the order in which they speak, and the next one does when it is
// silent.
func TestPrecedence(t *testing.T) {
	s, to := open(t, t.TempDir())
	s.Say(model.HostsOfEVPN, said(red, host(1, 30), host(2, 30), host(3, 30)))
	to.wants(t, "with EVPN", "vxlan:1 10.0.0.1 at 192.0.2.30, vxlan:1 10.0.0.2 at 192.0.2.30, vxlan:1 10.0.0.3 at 192.0.2.30")
	must(t, s.Put(in(red, host(1, 10))))
	s.Say(model.HostsOfOVN, said(red, host(1, 20), host(2, 20)))
	to.wants(t, "with all", "vxlan:1 10.0.0.1 at 192.0.2.10, vxlan:1 10.0.0.2 at 192.0.2.20, vxlan:1 10.0.0.3 at 192.0.2.30")
	must(t, s.Put(in(green, host(1, 10))))
	to.wants(t, "when the API has another segment", "vxlan:1 10.0.0.1 at 192.0.2.20, vxlan:1 10.0.0.2 at 192.0.2.20, vxlan:1 10.0.0.3 at 192.0.2.30, vxlan:2 10.0.0.1 at 192.0.2.10")
	s.Forget(model.HostsOfOVN)
	must(t, s.Put(nil))
	to.wants(t, "with EVPN alone", "vxlan:1 10.0.0.1 at 192.0.2.30, vxlan:1 10.0.0.2 at 192.0.2.30, vxlan:1 10.0.0.3 at 192.0.2.30")
	calls := to.calls
	s.Say(model.HostsOfEVPN, said(red, host(1, 30), host(2, 30), host(3, 30)))
	if to.calls != calls {
		t.Error("what has not changed is given again")
	}
}

// Contradictions are in the status and among the problems; who counts is said.
func TestContradictions(t *testing.T) {
	s, _ := open(t, t.TempDir())
	c := &model.Config{Director: model.Director{VTEP: model.VTEP{Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.200")}}},
		Segments: []model.SegmentSettings{{ID: red, VNI: 77, Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.250")}, MAC: model.MAC{2, 9}, Hosts: []model.SegmentHost{host(1, 5), host(2, 5)}}},
		Services: []model.Service{{Name: "web", Segment: red}, {Name: "plain", Backends: []model.Backend{{Segment: &red}, {Segment: &green}}}}}
	same := host(2, 5)
	same.VNI = 77 // as the segment's
	must(t, s.Put(in(red, host(1, 10), same)))
	s.Say(model.HostsOfOVN, said(red, host(1, 5), host(4, 20)))
	status := s.Status(c)
	one, other := model.SegmentHostStatus{SegmentHost: host(1, 5), Source: model.HostsOfConfiguration}, host(1, 10)
	one.Others = []model.OtherHost{{SegmentHost: other, Source: model.HostsOfAPI}}
	want := []model.SegmentStatus{
		{ID: red, VNI: 77, MAC: model.MAC{2, 9}, Addresses: c.Segments[0].Addresses, Services: []string{"web", "plain"},
			Hosts:    []model.SegmentHostStatus{one, {SegmentHost: host(2, 5), Source: model.HostsOfConfiguration}, {SegmentHost: host(4, 20), Source: model.HostsOfOVN}},
			Problems: []string{"10.0.0.1: the configuration says 02:00:00:00:00:01 at 192.0.2.5, and counts; the API says 02:00:00:00:00:01 at 192.0.2.10"}},
		{ID: green, VNI: 2, MAC: model.VTEPMAC(c.Director.VTEP.Addresses, green), Addresses: []netip.Addr{}, Services: []string{"plain"}, Hosts: []model.SegmentHostStatus{}},
	}
	if diff := cmp.Diff(want, status.Segments, cmpopts.EquateComparable(netip.Addr{})); diff != "" {
		t.Error("the status differs (-want +got):\n", diff)
	}
	problems := s.Problems(c)
	if len(problems) != 1 || problems[0].Part != "vxlan:1" || !strings.Contains(problems[0].Text, want[0].Problems[0]) {
		t.Errorf("the problems are %+v", problems)
	}
	must(t, s.Put(nil))
	if problems := s.Problems(c); len(problems) > 0 {
		t.Errorf("without the contradiction there are problems: %+v", problems)
	}
}

// A source that is lost keeps what it has said, and the first moment counts. A new process goes on with it.
func TestLostSources(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		s, _ := open(t, dir)
		s.Say(model.HostsOfOVN, Said{Hosts: map[model.Segment][]model.SegmentHost{red: {host(1, 20)}}, VNIs: map[model.Segment]uint32{red: 9}, Networks: map[model.Segment]string{red: "net"}})
		time.Sleep(time.Minute) // the clock of this test does not run by itself
		lost := time.Now()
		s.Lose(model.HostsOfOVN, lost, errors.New("connection refused"))
		time.Sleep(time.Minute) // the clock of this test does not run by itself
		s.Lose(model.HostsOfOVN, time.Now(), errors.New("no route to host"))
		status := s.Status(&model.Config{})
		if of := status.Sources[0]; !of.Since.Equal(lost) || of.Lost != "no route to host" || of.Hosts != 1 {
			t.Errorf("the source is %+v, want lost since %v", of, lost)
		}
		if problems := s.Problems(&model.Config{}); len(problems) != 1 || problems[0].Part != "ovn" || !strings.Contains(problems[0].Text, "no route to host") {
			t.Errorf("the problems are %+v", problems)
		}
		ctx, end := context.WithCancel(t.Context())
		end()
		s.Run(ctx)

		again, to := open(t, dir)
		to.wants(t, "after a start", "vxlan:1 10.0.0.1 at 192.0.2.20")
		if to.vnis[red] != 9 {
			t.Errorf("after a start the VNIs are %v", to.vnis)
		}
		if of := again.Status(&model.Config{}).Sources[0]; of.Lost == "" {
			t.Errorf("after a start the source has not answered, and is %+v", of)
		}
		again.Retain(model.HostsOfOVN, func(_ model.Segment, network string) bool { return network == "net" })
		to.wants(t, "of the same network", "vxlan:1 10.0.0.1 at 192.0.2.20")
		again.Retain(model.HostsOfOVN, func(_ model.Segment, network string) bool { return network == "other" })
		to.wants(t, "of another network", "")
		if len(to.vnis) != 0 {
			t.Errorf("of another network the VNIs are %v", to.vnis)
		}
	})
}

// What a source says after a while of silence is written at once, so that a process that is killed goes on with it;
// what it says in a row is written as one.
func TestKeptSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		s, _ := open(t, dir)
		ctx, end := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { s.Run(ctx) })
		kept := func(when, want string) {
			t.Helper()
			synctest.Wait()
			_, to := open(t, dir)
			to.wants(t, when, want)
		}
		for _, vtep := range []byte{20, 21} {
			s.Say(model.HostsOfOVN, said(red, host(1, vtep)))
			time.Sleep(gathering) // the clock of this test does not run by itself
			kept("after a move", fmt.Sprintf("vxlan:1 10.0.0.1 at 192.0.2.%d", vtep))
			time.Sleep(time.Minute) // the clock of this test does not run by itself
		}
		for vtep := range byte(50) { // for 17.5 s
			s.Say(model.HostsOfOVN, said(red, host(1, 100+vtep)))
			time.Sleep(350 * time.Millisecond) // the same
		}
		kept("while it says more", "vxlan:1 10.0.0.1 at 192.0.2.134") // as it was when gathering, keeping and gathering were over
		time.Sleep(keeping)                                           // the same
		kept("in the end", "vxlan:1 10.0.0.1 at 192.0.2.149")
		end()
		running.Wait()
	})
}

// What the sink refuses is a problem, and is tried again until it takes it; what sources say is written meanwhile.
func TestRefusedIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, to := open(t, t.TempDir())
		to.err = errors.New("no space left on device")
		if err := s.Put(in(red, host(1, 10))); err == nil {
			t.Error("a refusal is not answered")
		}
		if problems := s.Problems(&model.Config{}); len(problems) != 1 || !strings.Contains(problems[0].Text, "no space left") {
			t.Errorf("the problems are %+v", problems)
		}
		ctx, end := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { s.Run(ctx) })
		synctest.Wait()
		to.mu.Lock()
		to.err = nil
		to.mu.Unlock()
		time.Sleep(time.Minute) // the clock of this test does not run by itself
		synctest.Wait()
		to.wants(t, "later", "vxlan:1 10.0.0.1 at 192.0.2.10")
		if problems := s.Problems(&model.Config{}); len(problems) != 0 {
			t.Errorf("later the problems are %+v", problems)
		}
		end()
		running.Wait()
	})
}

// What clients of the API have put is there after a power cut, and a file that cannot be written or read is said.
func TestPutIsKept(t *testing.T) {
	dir := t.TempDir()
	s, _ := open(t, dir)
	must(t, s.Put(in(red, host(1, 10))))
	again, to := open(t, dir)
	to.wants(t, "after a start", "vxlan:1 10.0.0.1 at 192.0.2.10")
	if of := again.Status(&model.Config{}).Sources[0]; of.Lost != "" || of.Hosts != 1 {
		t.Errorf("the API's source is %+v", of)
	}
	file := filepath.Join(dir, "hosts-api")
	must(t, os.Remove(file))
	must(t, os.MkdirAll(filepath.Join(file, "in-the-way"), 0o755))
	if err := again.Put(in(red, host(2, 10))); err == nil || !strings.Contains(err.Error(), "hosts-api") {
		t.Errorf("without a place to write: %v", err)
	}
	to.wants(t, "after what could not be kept", "vxlan:1 10.0.0.1 at 192.0.2.10")
	must(t, os.RemoveAll(file))
	must(t, os.WriteFile(file, []byte("{"), 0o600))
	damaged, to := open(t, dir)
	to.wants(t, "with a damaged file", "")
	if err := damaged.Amiss(model.HostsOfAPI); err == nil || !strings.Contains(err.Error(), "hosts-api") {
		t.Errorf("a damaged file: %v", err)
	}
	must(t, damaged.Put(in(red, host(1, 10))))
	if err := damaged.Amiss(model.HostsOfAPI); err != nil {
		t.Errorf("a file that was written again: %v", err)
	}
}

// A learned VNI counts where none is configured. The one of another segment is not taken, and is said.
func TestVNIs(t *testing.T) {
	s, to := open(t, t.TempDir())
	s.Say(model.HostsOfOVN, Said{VNIs: map[model.Segment]uint32{red: 9, green: 2}, Hosts: map[model.Segment][]model.SegmentHost{red: nil, green: nil}})
	if to.vnis[red] != 9 {
		t.Errorf("the datapath has VNIs %v", to.vnis)
	}
	nine := model.Segment{Kind: model.SegmentVXLAN, ID: 9}
	c := &model.Config{Segments: []model.SegmentSettings{{ID: red, Network: "a"}, {ID: green, Network: "b", VNI: 3}, {ID: nine}, {ID: model.Segment{Kind: model.SegmentVXLAN, ID: 10}, Network: "c"}}}
	got := map[string]string{}
	for _, of := range s.Status(c).Segments {
		got[of.ID.String()] = fmt.Sprintf("%d%v", of.VNI, of.Problems)
	}
	want := map[string]string{
		"vxlan:1":  "9[no packets are taken from it: VNI 9 is that of vxlan:9]",
		"vxlan:2":  "3[its VNI is configured to be 3, and a source says 2]",
		"vxlan:9":  "9[]",
		"vxlan:10": "0[]",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error("VNIs differ (-want +got):\n", diff)
	}
}

// A contradiction ends with the configuration that is changed, too.
func TestContradictionsFollowTheConfiguration(t *testing.T) {
	s, _ := open(t, t.TempDir())
	must(t, s.Put(in(red, host(1, 10))))
	for _, step := range []struct {
		at   byte
		want int
	}{{10, 0}, {5, 1}, {10, 0}} {
		c := &model.Config{Segments: []model.SegmentSettings{{ID: red, Hosts: []model.SegmentHost{host(1, step.at)}}}}
		for range 2 {
			if got := s.Problems(c); len(got) != step.want {
				t.Errorf("with the configured host at %d the problems are %+v", step.at, got)
			}
		}
	}
}

// macAt is where a MAC address is.
func macAt(n, vtep byte) model.SegmentMAC {
	return model.SegmentMAC{MAC: model.MAC{2, 0, 0, 0, 0, n}, VTEP: netip.AddrFrom4([4]byte{192, 0, 2, vtep}), VNI: 7}
}

// What a source says of MAC addresses outlives the process.
func TestMACsAreKept(t *testing.T) {
	dir := t.TempDir()
	s, _ := open(t, dir)
	of := said(red, host(1, 30))
	of.MACs = map[model.Segment][]model.SegmentMAC{red: {macAt(1, 30)}, green: {macAt(2, 30)}}
	s.Say(model.HostsOfEVPN, of)
	s.keep()
	s, to := open(t, dir)
	if !reflect.DeepEqual(to.macs, of.MACs) {
		t.Errorf("after a start MAC addresses are at %v, want %v", to.macs, of.MACs)
	}
	s.Retain(model.HostsOfEVPN, func(id model.Segment, _ string) bool { return id == red })
	if want := map[model.Segment][]model.SegmentMAC{red: {macAt(1, 30)}}; !reflect.DeepEqual(to.macs, want) {
		t.Errorf("of segments that are asked about MAC addresses are at %v, want %v", to.macs, want)
	}
}

// A host that some source places at a VTEP from which the segment takes no packets is a problem, until either changes.
func TestHostsAtVTEPsThatAreNoPeers(t *testing.T) {
	s, _ := open(t, t.TempDir())
	with := func(peers ...string) *model.Config {
		c := &model.Config{Segments: []model.SegmentSettings{{ID: red, Hosts: []model.SegmentHost{host(1, 5)}}},
			Services: []model.Service{{Name: "web", Segment: red, Backends: []model.Backend{{Address: host(7, 7).Address, MAC: host(7, 7).MAC, VTEP: host(7, 7).VTEP}}}}}
		for _, p := range peers {
			c.Segments[0].Peers = append(c.Segments[0].Peers, netip.MustParsePrefix(p))
		}
		return c
	}
	say := func(when string, c *model.Config, want string) {
		t.Helper()
		got := ""
		for _, p := range s.Problems(c) {
			got += p.Text
		}
		if want != "" {
			want = "vxlan:1: what " + want
		}
		if got != want {
			t.Errorf("%s it says\n%s\nwant\n%s", when, got, want)
		}
	}
	const dropped = " send to this director is dropped, such as answers to health checks: segments[].peers has not their VTEPs; the first of them is "
	few := with("192.0.2.0/29")
	say("without peers", with(), "")
	say("with peers that have all", few, "")
	s.Say(model.HostsOfEVPN, said(red, host(2, 5), host(3, 30), host(4, 30)))
	say("when EVPN knows others", few, "2 of its hosts"+dropped+"10.0.0.3 at 192.0.2.30")
	say("with peers that have all again", with("192.0.2.0/24"), "")
	s.Say(model.HostsOfEVPN, Said{})
	say("when they are gone", few, "")
	say("when the configuration's own are none", with("192.0.2.5/32"), "1 of its hosts"+dropped+"10.0.0.7 at 192.0.2.7")
}

// What other sources than the configuration and the API say is not refused: what cannot be is a problem. A group's
// other directors tell by EVPN that they have the VIPs.
func TestHostsThatCannotBe(t *testing.T) {
	s, _ := open(t, t.TempDir())
	c := &model.Config{Director: model.Director{VTEP: model.VTEP{Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.200")}}},
		Segments: []model.SegmentSettings{{ID: red, Addresses: []netip.Addr{host(3, 0).Address}, MAC: model.MAC{2, 0, 0, 0, 0, 99}}},
		Services: []model.Service{{Name: "web", Segment: red, VIP: host(100, 0).Address}}}
	odd := func(n, mac, vtep byte) model.SegmentHost {
		h := host(n, vtep)
		h.MAC[5] = mac
		return h
	}
	for _, test := range []struct {
		what  string
		hosts []model.SegmentHost
		want  string
	}{
		{"nothing odd", []model.SegmentHost{host(1, 5), odd(2, 1, 5), host(100, 6)}, ""},
		{"the director's address", []model.SegmentHost{host(3, 5)}, "vxlan:1: 10.0.0.3: EVPN says 02:00:00:00:00:03 at 192.0.2.5, and 10.0.0.3 is this director's own address in vxlan:1 (segments[].addresses), and no other host's"},
		{"its MAC address", []model.SegmentHost{odd(1, 99, 5)}, "vxlan:1: 10.0.0.1: EVPN says 02:00:00:00:00:63 at 192.0.2.5, and 02:00:00:00:00:63 is this director's own MAC address in vxlan:1, and no other host's"},
		{"one MAC address twice", []model.SegmentHost{host(1, 5), odd(2, 1, 6)}, "vxlan:1: 10.0.0.2: EVPN says so: 02:00:00:00:00:01 is at VTEP 192.0.2.6, and it is the MAC address of 10.0.0.1 at VTEP 192.0.2.5, too: a host is at one of them"},
	} {
		s.Say(model.HostsOfEVPN, said(red, test.hosts...))
		got := ""
		for _, p := range s.Problems(c) {
			got += p.Text
		}
		if got != test.want {
			t.Errorf("of %s it says\n%s\nwant\n%s", test.what, got, test.want)
		}
	}
	s.Say(model.HostsOfEVPN, Said{})
	must(t, s.Put(in(red, host(100, 5)))) // before a set had the VIP
	if problems := s.Problems(c); len(problems) != 1 || !strings.Contains(problems[0].Text, `the API says 02:00:00:00:00:64 at 192.0.2.5, and 10.0.0.100 is the VIP of service "web" in vxlan:1`) {
		t.Errorf("of a host at a VIP the problems are %+v", problems)
	}
}

// A source that has not said all yet: what it said before goes on where it says nothing else.
func TestAdd(t *testing.T) {
	s, to := open(t, t.TempDir())
	first := said(red, host(1, 30), host(2, 30))
	first.VTEPs = []netip.Addr{netip.MustParseAddr("192.0.2.30")}
	first.MACs = map[model.Segment][]model.SegmentMAC{red: {macAt(1, 30), macAt(2, 30)}}
	s.Say(model.HostsOfEVPN, first)
	s.Lose(model.HostsOfEVPN, time.Now(), errors.New("no session"))
	more := said(red, host(2, 31))
	more.VTEPs = []netip.Addr{netip.MustParseAddr("192.0.2.31")}
	more.MACs = map[model.Segment][]model.SegmentMAC{red: {macAt(2, 31)}}
	s.Add(model.HostsOfEVPN, more)
	to.wants(t, "with more", "vxlan:1 10.0.0.1 at 192.0.2.30, vxlan:1 10.0.0.2 at 192.0.2.31")
	if want := []netip.Addr{netip.MustParseAddr("192.0.2.30"), netip.MustParseAddr("192.0.2.31")}; !slices.Equal(to.vteps, want) {
		t.Errorf("VTEPs %v, want %v", to.vteps, want)
	}
	if want := []model.SegmentMAC{macAt(2, 31), macAt(1, 30)}; !slices.Equal(to.macs[red], want) {
		t.Errorf("MAC addresses %v, want %v", to.macs[red], want)
	}
	if s.Sources()[0].Lost == "" {
		t.Error("a source that was lost is not any more, because it has said a part")
	}
	s.Say(model.HostsOfEVPN, more)
	to.wants(t, "with all", "vxlan:1 10.0.0.2 at 192.0.2.31")
	if want := []netip.Addr{netip.MustParseAddr("192.0.2.31")}; !slices.Equal(to.vteps, want) {
		t.Errorf("VTEPs %v, want %v", to.vteps, want)
	}
}

// More hosts than a director has room for are left out of the segment that has most, which a problem of it tells. Those of
// others have theirs, whichever source says them.
func TestMoreThanRoom(t *testing.T) {
	s, to := open(t, t.TempDir())
	many := make([]model.SegmentHost, model.MaxSegmentHosts-2)
	for i := range many {
		many[i] = model.SegmentHost{Address: netip.AddrFrom4([4]byte{11, 0, byte(i >> 8), byte(i)}), MAC: model.MAC{2}, VTEP: netip.AddrFrom4([4]byte{192, 0, 2, 1})}
	}
	s.Say(model.HostsOfEVPN, said(red, host(1, 30), host(2, 30), host(3, 30), host(4, 30)))
	s.Say(model.HostsOfOVN, said(green, many...))
	if len(to.hosts[green]) != len(many)-2 || len(to.hosts[red]) != 4 {
		t.Errorf("the datapath has %d and %d hosts, want %d and 4", len(to.hosts[green]), len(to.hosts[red]), len(many)-2)
	}
	want := fmt.Sprintf("vxlan:2: no packets go to 2 of its hosts, the first of them %v: a director has room for 65536 hosts of all segments together", many[len(many)-2].Address)
	if found := s.Problems(&model.Config{}); len(found) != 1 || found[0].Segment != green || found[0].Text != want {
		t.Errorf("problems are %+v, want %q", found, want)
	}
	s.Say(model.HostsOfOVN, said(green, many[2:]...))
	if found := s.Problems(&model.Config{}); len(found) != 0 || len(to.hosts[green]) != len(many)-2 {
		t.Errorf("with room there is %+v, and %d hosts are known", found, len(to.hosts[green]))
	}
}
