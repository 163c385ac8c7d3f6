package bgp

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"weir.io/weir/internal/model"
	"weir.io/weir/lab/netlab"
	"weir.io/weir/lab/routerlab"
)

// A speaker of these tests is this program again, in the network namespace of a host.
const speakerVariable = "WEIR_TEST_SPEAKER"

func TestMain(m *testing.M) {
	if os.Getenv(speakerVariable) == "" {
		os.Exit(m.Run())
	}
	if err := speak(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// order is what a speaker is to do, nil: what it did before; and saw is what it answers.
type (
	order struct {
		BGP  *model.BGP
		EVPN *model.EVPN
	}
	saw struct {
		Learned model.EVPNLearned
		Status  model.BGPStatus
		Error   string
	}
)

// speak takes orders until there are no more.
func speak(orders io.Reader, answers io.Writer) error {
	s := New(nil, slog.New(slog.NewTextHandler(os.Stderr, nil)))
	defer s.Close()
	var mu sync.Mutex
	var last model.EVPNLearned
	s.FollowEVPN(func(l model.EVPNLearned) {
		mu.Lock()
		defer mu.Unlock()
		last = l
	})
	for read, write := json.NewDecoder(orders), json.NewEncoder(answers); ; {
		var o order
		if err := read.Decode(&o); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		answer := saw{}
		if o.EVPN != nil {
			if err := s.SetEVPN(*o.EVPN); err != nil {
				answer.Error = err.Error()
			}
		}
		if o.BGP != nil {
			s.Set(*o.BGP, nil)
		}
		mu.Lock()
		answer.Learned, answer.Status = last, s.Status()
		mu.Unlock()
		if err := write.Encode(answer); err != nil {
			return err
		}
	}
}

// speaking is a speaker on a host.
type speaking struct {
	t       *testing.T
	orders  io.WriteCloser
	answers *bufio.Reader
	process *netlab.Command
}

func startSpeaker(t *testing.T, h *netlab.Host) *speaking {
	t.Helper()
	cmd := h.Command(context.Background(), "/proc/self/exe")
	cmd.Env = append(cmd.Env, speakerVariable+"=1")
	log := &logBuffer{}
	cmd.Stderr = log
	orders, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	answers, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	s := &speaking{t, orders, bufio.NewReader(answers), cmd}
	t.Cleanup(func() {
		s.stop()
		if t.Failed() {
			t.Logf("the speaker on %s said:\n%s", h.Name, log)
		}
	})
	return s
}

func (s *speaking) stop() {
	s.orders.Close()
	_ = s.process.Wait() // it may have been killed
}

func (s *speaking) do(o order) (answer saw) {
	s.t.Helper()
	if err := json.NewEncoder(s.orders).Encode(o); err != nil {
		s.t.Fatal(err)
	}
	line, err := s.answers.ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, &answer)
	}
	if err != nil || answer.Error != "" {
		s.t.Fatal("the speaker:", err, answer.Error)
	}
	return answer
}

// learns waits until the speaker has learned something.
func (s *speaking) learns(what string, condition func(model.EVPNLearned) bool) {
	s.t.Helper()
	var answer saw
	defer func() {
		if s.t.Failed() {
			text, _ := json.MarshalIndent(answer, "", " ")
			s.t.Logf("the speaker says %s", text)
		}
	}()
	netlab.WaitFor(s.t, "the speaker to learn "+what, func() bool {
		answer = s.do(order{})
		return condition(answer.Learned)
	})
}

// at is the host of an address that has been learned; of no address, that of the MAC address.
func at(l model.EVPNLearned, m string, address string) (h model.EVPNHost) {
	for _, h := range l.Hosts {
		if m != "" && h.MAC.String() != m {
			continue
		}
		if address == "" && !h.IP.IsValid() || h.IP.IsValid() && h.IP.String() == address {
			return h
		}
	}
	return model.EVPNHost{}
}

// fabric is an overlay, VNI 5001, with two VTEPs of FRR, of which the first reflects the routes of the
// others, and hosts for directors:
//
//	          underlay 10.0.0.0/24, fd00::/64
//	director1, director2 --- switch --- vtep2 (FRR, reflector) - bridge - guest
//	                                --- vtep3 (FRR) ----------- bridge
//
// The bridges have the addresses 192.168.0.2 and .3 of the segment.
type fabric struct {
	*netlab.Lab
	t                    *testing.T
	underlay             *netlab.Host
	director1, director2 *netlab.Host
	vtep2, vtep3         *netlab.Host
	reflector            *routerlab.FRR // on vtep2
	session6             bool           // BGP goes over IPv6
	asn                  uint32         // of the directors
}

const frrOverlay = `
hostname HOST
router bgp 65000
 bgp router-id 10.0.0.NUMBER
 no bgp default ipv4-unicast
 no bgp ebgp-requires-policy
 neighbor overlay peer-group
 neighbor overlay remote-as PEERAS
 neighbor overlay advertisement-interval 0
 neighbor overlay timers 1 3
 neighbor reflected peer-group
 neighbor reflected remote-as 65000
 neighbor reflected advertisement-interval 0
 neighbor reflected timers 1 3
 neighbor reflected timers connect 1
LINES
 address-family ipv4 unicast
  neighbor overlay activate
 exit-address-family
 address-family l2vpn evpn
  neighbor overlay activate
  neighbor reflected activate
AFLINES
  advertise-all-vni
 exit-address-family
`

// newFabric makes a fabric in which directors have an AS.
func newFabric(t *testing.T, session6 bool, asn uint32) *fabric {
	t.Helper()
	f := &fabric{Lab: netlab.ForTest(t), t: t, session6: session6, asn: asn}
	f.underlay = f.Switch("underlay")
	f.director1, f.director2 = f.host("director1", 1), f.host("director2", 5)
	f.vtep2, f.vtep3 = f.vtep("vtep2", 2), f.vtep("vtep3", 3)
	ranges, client := "10.0.0.0/24", ""
	if session6 {
		ranges = "fd00::/64"
	}
	if asn == 65000 {
		client = "  neighbor overlay route-reflector-client\n"
	}
	f.reflector = f.frr(f.vtep2, 2, " bgp listen range "+ranges+" peer-group overlay\n neighbor 10.0.0.3 peer-group reflected",
		client+"  neighbor reflected route-reflector-client")
	f.frr(f.vtep3, 3, " neighbor 10.0.0.2 peer-group reflected", "")
	return f
}

func (f *fabric) frr(h *netlab.Host, number int, lines, families string) *routerlab.FRR {
	f.t.Helper()
	fill := strings.NewReplacer("HOST", h.Name, "NUMBER", fmt.Sprint(number), "PEERAS", fmt.Sprint(f.asn), "AFLINES", families, "LINES", lines)
	router, err := routerlab.StartFRR(h, routerlab.FRRConfig{BGP: fill.Replace(frrOverlay)})
	if err == nil {
		err = router.Realtime()
	}
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() {
		if f.t.Failed() {
			routes, _ := router.Query("show bgp l2vpn evpn route")
			mac, _ := router.Query("show evpn mac vni all")
			neighbors, _ := router.Query("show evpn arp-cache vni all")
			f.t.Logf("FRR on %s:\n%s\n%s\n%s\n%s\n%s", h.Name, router.BGPD.Log(), router.Zebra.Log(), routes, mac, neighbors)
		}
	})
	return router
}

func (f *fabric) host(name string, number int) *netlab.Host {
	h := f.Host(name)
	f.Link(h, f.underlay, netlab.LinkOptions{A: []string{fmt.Sprintf("10.0.0.%d/24", number), fmt.Sprintf("fd00::%d/64", number)}})
	return h
}

// vtep makes a host a VTEP: its bridge has a device of VXLAN, and an address in the segment.
func (f *fabric) vtep(name string, number int) *netlab.Host {
	f.t.Helper()
	h := f.host(name, number)
	f.on(h, "ip", "link", "add", "tenant", "type", "bridge")
	f.on(h, "ip", "link", "add", "vxlan5001", "type", "vxlan", "id", "5001", "dstport", "4789", "local", fmt.Sprintf("10.0.0.%d", number), "nolearning")
	f.on(h, "ip", "link", "set", "vxlan5001", "master", "tenant", "addrgenmode", "none")
	f.on(h, "bridge", "link", "set", "dev", "vxlan5001", "neigh_suppress", "on", "learning", "off")
	f.on(h, "ip", "link", "set", "vxlan5001", "up")
	f.on(h, "ip", "link", "set", "tenant", "up")
	h.Address("tenant", fmt.Sprintf("192.168.0.%d/24", number), fmt.Sprintf("2001:db8::%d/64", number))
	return h
}

func (f *fabric) on(h *netlab.Host, program string, args ...string) string {
	f.t.Helper()
	out, err := h.Command(f.t.Context(), program, args...).CombinedOutput()
	if err != nil {
		f.t.Fatalf("%s: %s %v: %v\n%s", h.Name, program, args, err, out)
	}
	return string(out)
}

// plug makes a host with these addresses of the segment at a VTEP, which speaks to it: so the VTEP
// hears of it.
func (f *fabric) plug(name string, vtep *netlab.Host, m string, addresses ...string) *netlab.Host {
	f.t.Helper()
	h := f.Host(name)
	link := f.Link(h, vtep, netlab.LinkOptions{NameB: name})
	f.on(h, "ip", "link", "set", link.A.Name, "address", m)
	f.on(vtep, "ip", "link", "set", name, "master", "tenant")
	h.Address(link.A.Name, addresses...)
	f.speaks(h, vtep)
	return h
}

// speaks has a host of the segment ask for the addresses of its VTEP until both answer: no process there
// takes the connection.
func (f *fabric) speaks(h, vtep *netlab.Host) {
	f.t.Helper()
	number := strings.TrimPrefix(vtep.Name, "vtep")
	for _, to := range []string{"192.168.0." + number, "2001:db8::" + number} {
		netlab.WaitFor(f.t, h.Name+" to be heard", func() bool {
			return errors.Is(h.Do(func() error {
				conn, err := net.DialTimeout("tcp", net.JoinHostPort(to, "9"), time.Second)
				if err == nil {
					conn.Close()
				}
				return err
			}), syscall.ECONNREFUSED)
		})
	}
}

// sees waits until a command on a host prints lines that each have all of these words, one line for each
// group of them; gone waits until none has.
func (f *fabric) sees(h *netlab.Host, command string, lines ...string) {
	f.look(h, command, true, lines)
}
func (f *fabric) gone(h *netlab.Host, command string, lines ...string) {
	f.look(h, command, false, lines)
}

func (f *fabric) look(h *netlab.Host, command string, want bool, lines []string) {
	f.t.Helper()
	out := ""
	defer func() {
		if f.t.Failed() {
			f.t.Logf("%s: %s:\n%s", h.Name, command, out)
		}
	}()
	words := strings.Fields(command)
	netlab.WaitFor(f.t, fmt.Sprintf("%q on %s to say %q: %v", command, h.Name, lines, want), func() bool {
		out = f.on(h, words[0], words[1:]...)
		return !slices.ContainsFunc(lines, func(line string) bool { return has(out, line) != want })
	})
}

// has reports whether a line has all words.
func has(text, words string) bool {
	for line := range strings.Lines(text) {
		if !slices.ContainsFunc(strings.Fields(words), func(word string) bool { return !slices.Contains(strings.Fields(line), word) }) {
			return true
		}
	}
	return false
}

// config is the BGP of a director: a session with the reflector.
func (f *fabric) config(director int) *model.BGP {
	n := model.BGPNeighbor{Address: vtep(2), ASN: 65000, Port: model.DefaultBGPPort, HoldTime: model.Duration(3e9), RestartTime: model.Duration(30e9),
		Families: []model.BGPFamily{model.BGPIPv4, model.BGPEVPN}}
	if f.session6 {
		n.Address, n.Families = netip.MustParseAddr("fd00::2"), []model.BGPFamily{model.BGPEVPN}
	}
	return &model.BGP{ASN: f.asn, RouterID: vtep(director), Neighbors: []model.BGPNeighbor{n}}
}

// presence is the segment as a director tells it.
func presence(director int, entries ...model.EVPNEntry) *model.EVPN {
	return &model.EVPN{Segments: []model.EVPNSegment{{VNI: 5001, VTEP: vtep(director), Entries: entries}}}
}

func entryOf(m model.MAC, address string) model.EVPNEntry {
	e := model.EVPNEntry{MAC: m}
	if address != "" {
		e.IP = netip.MustParseAddr(address)
	}
	return e
}

const (
	fdb        = "bridge fdb show dev vxlan5001"
	neighbors4 = "ip -4 neigh show dev tenant"
	neighbors6 = "ip -6 neigh show dev tenant"

	vip, vip6 = "192.168.0.100", "2001:db8::100"
	guestMAC  = "02:00:00:00:aa:01"
	guest, g6 = "192.168.0.50", "2001:db8::50"
)

// Directors and the VTEPs of FRR know of each other's hosts: what a director tells is in the kernels of
// the VTEPs, and what is behind those the director learns, also when it moves from one to the other. A
// VIP that one director takes from a host, and another from that one, is at the new one at once,
// whether its MAC address moves along or not.
func TestEVPNWithFRR(t *testing.T) {
	for name, test := range map[string]struct {
		session6 bool
		asn      uint32
	}{"iBGP, of which a VTEP is the reflector": {false, 65000}, "eBGP over IPv6": {true, 65001}} {
		t.Run(name, func(t *testing.T) { overlayWithFRR(t, newFabric(t, test.session6, test.asn)) })
	}
}

func overlayWithFRR(t *testing.T, f *fabric) {
	own, other, shared := model.MAC{2, 0, 0, 0, 0xd0, 1}, model.MAC{2, 0, 0, 0, 0xd0, 5}, model.MAC{0, 0, 0x5e, 0, 1, 7}
	own4, own6 := entryOf(own, "192.168.0.1"), entryOf(own, "2001:db8::1")
	one := startSpeaker(t, f.director1)
	one.do(order{f.config(1), presence(1, entryOf(own, ""), own4, own6)})

	// Told: FRR has the routes, and its kernels what follows from them. The entry for all is that of
	// type 3.
	for _, h := range []*netlab.Host{f.vtep2, f.vtep3} {
		f.sees(h, fdb, own.String()+" dst 10.0.0.1 extern_learn", "00:00:00:00:00:00 dst 10.0.0.1")
		f.sees(h, neighbors4, "192.168.0.1 lladdr "+own.String()+" extern_learn")
		f.sees(h, neighbors6, "2001:db8::1 lladdr "+own.String()+" extern_learn")
	}
	routes, err := f.reflector.Query("show bgp l2vpn evpn route")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"Route Distinguisher: 10.0.0.1:5001", "[2]:[0]:[48]:[" + own.String() + "]:[32]:[192.168.0.1]",
		"[2]:[0]:[48]:[" + own.String() + "]:[128]:[2001:db8::1]", "[2]:[0]:[48]:[" + own.String() + "]", "[3]:[0]:[32]:[10.0.0.1]",
		fmt.Sprintf("RT:%d:5001 ET:8", f.asn)} {
		if !strings.Contains(routes, want) {
			t.Errorf("FRR has no %q in\n%s", want, routes)
		}
	}

	// Learned: the VTEPs, and a host, which moves from one to the other.
	one.learns("the VTEPs", func(l model.EVPNLearned) bool {
		return l.Complete && len(l.VTEPs) == 2 && l.VTEPs[0] == model.EVPNVTEP{VNI: 5001, VTEP: vtep(2), Label: 5001} && l.VTEPs[1].VTEP == vtep(3)
	})
	g := f.plug("guest", f.vtep2, guestMAC, guest+"/24", g6+"/64")
	there := func(address string, vtep netip.Addr, least uint32) func(model.EVPNLearned) bool {
		return func(l model.EVPNLearned) bool {
			h := at(l, guestMAC, address)
			return h.VTEP == vtep && h.VNI == 5001 && h.Label == 5001 && h.Sequence >= least && !h.Static
		}
	}
	for _, address := range []string{"", guest, g6} {
		one.learns("the guest "+address, there(address, vtep(2), 0))
	}
	if s := one.do(order{}).Status; s.Neighbors[0].EVPN == nil || s.Neighbors[0].EVPN.Sent != 4 || s.Neighbors[0].EVPN.Received < 5 || s.Neighbors[0].Problem != "" ||
		s.EVPN[0].VTEPs != 2 || s.EVPN[0].Hosts < 3 {
		t.Errorf("the status is %+v, %+v", s, s.Neighbors[0].EVPN)
	}
	// It is silent at its old VTEP, which has its routes until the new one tells of it: else these could be
	// withdrawn first, and no sequence number would say that it moved.
	g.Sysctl("net.ipv6.conf.all.disable_ipv6", "1")
	f.on(g, "ip", "-4", "address", "flush", "scope", "global")
	// It speaks again and again: what the kernel of its new VTEP knows of it is what zebra has put there
	// of the old one, and goes with that.
	moved := f.plug("guest-moved", f.vtep3, guestMAC, guest+"/24", g6+"/64")
	for _, address := range []string{"", guest, g6} {
		one.learns("that the guest moved "+address, func(l model.EVPNLearned) bool {
			f.speaks(moved, f.vtep3)
			return there(address, vtep(3), 1)(l)
		})
	}
	if err := g.Kill(); err != nil {
		t.Fatal(err)
	}
	f.on(f.vtep2, "ip", "link", "del", "guest")

	// Taken: a host of the segment has the VIP before the first director.
	f.plug("old", f.vtep2, "02:00:00:00:bb:01", vip+"/24", vip6+"/64")
	one.learns("who has the VIP", func(l model.EVPNLearned) bool {
		return at(l, "", vip).VTEP == vtep(2) && at(l, "", vip6).VTEP == vtep(2)
	})
	one.do(order{EVPN: presence(1, entryOf(own, ""), own4, own6, entryOf(own, vip), entryOf(own, vip6))})
	f.sees(f.vtep3, neighbors4, vip+" lladdr "+own.String()+" extern_learn")
	f.sees(f.vtep3, neighbors6, vip6+" lladdr "+own.String()+" extern_learn")

	two := startSpeaker(t, f.director2)
	two.do(order{f.config(5), presence(5, entryOf(other, ""))})
	two.learns("that the first director has the VIP", func(l model.EVPNLearned) bool { return l.Complete && at(l, "", vip).VTEP == vtep(1) })
	two.do(order{EVPN: presence(5, entryOf(other, ""), entryOf(other, vip), entryOf(other, vip6))})
	for _, h := range []*netlab.Host{f.vtep2, f.vtep3} {
		f.sees(h, neighbors4, vip+" lladdr "+other.String()+" extern_learn")
		f.sees(h, neighbors6, vip6+" lladdr "+other.String()+" extern_learn")
		f.sees(h, fdb, other.String()+" dst 10.0.0.5")
	}
	one.learns("who took the VIP", func(l model.EVPNLearned) bool { return at(l, "", vip).VTEP == vtep(5) })
	if contested := one.do(order{}).Status.EVPN[0].Contested; len(contested) != 2 || contested[0].VTEP != vtep(5) {
		t.Errorf("contested are %+v", contested)
	}
	one.do(order{EVPN: presence(1, entryOf(own, ""), own4, own6, entryOf(shared, ""), entryOf(shared, "192.168.0.200"))})
	f.sees(f.vtep3, neighbors4, vip+" lladdr "+other.String()+" extern_learn", "192.168.0.200 lladdr "+shared.String())
	f.sees(f.vtep3, fdb, shared.String()+" dst 10.0.0.1")

	// The MAC address moves along.
	two.learns("where the shared MAC address is", func(l model.EVPNLearned) bool { return at(l, shared.String(), "").VTEP == vtep(1) })
	two.do(order{EVPN: presence(5, entryOf(other, ""), entryOf(other, vip), entryOf(shared, ""), entryOf(shared, "192.168.0.200"))})
	for _, h := range []*netlab.Host{f.vtep2, f.vtep3} {
		f.sees(h, fdb, shared.String()+" dst 10.0.0.5")
		f.gone(h, fdb, shared.String()+" dst 10.0.0.1")
		f.gone(h, neighbors6, vip6+" lladdr "+other.String())
	}

	// The first director does not tell the shared addresses any more, and has them again when the second
	// one's process is killed. FRR 8.4 then forgets what that has told: it keeps no EVPN routes.
	netlab.WaitFor(t, "the first director to withdraw what the second one took", func() bool {
		routes, err = f.reflector.Query("show bgp l2vpn evpn route rd 10.0.0.1:5001")
		if err != nil {
			t.Fatal(err)
		}
		return strings.Contains(routes, own.String()) && !strings.Contains(routes, shared.String())
	})
	if err := two.process.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	two.stop()
	for _, h := range []*netlab.Host{f.vtep2, f.vtep3} {
		f.sees(h, fdb, shared.String()+" dst 10.0.0.1")
		f.sees(h, neighbors4, "192.168.0.200 lladdr "+shared.String()+" extern_learn")
		f.gone(h, fdb, "dst 10.0.0.5")
	}
	if contested := one.do(order{}).Status.EVPN[0].Contested; len(contested) > 0 {
		t.Errorf("without the second director %+v are contested", contested)
	}

	// Gone: what the first director told is withdrawn.
	one.do(order{EVPN: &model.EVPN{}})
	for _, h := range []*netlab.Host{f.vtep2, f.vtep3} {
		f.gone(h, fdb, own.String(), "dst 10.0.0.1")
	}
}

const gobgpOverlay = `
[global.config]
as = 65000
router-id = "10.0.0.9"
[[peer-groups]]
[peer-groups.config]
peer-group-name = "directors"
peer-as = 65000
[peer-groups.route-reflector.config]
route-reflector-client = true
route-reflector-cluster-id = "10.0.0.9"
[peer-groups.timers.config]
hold-time = 3
[peer-groups.graceful-restart.config]
enabled = true
restart-time = 60
[[peer-groups.afi-safis]]
[peer-groups.afi-safis.config]
afi-safi-name = "l2vpn-evpn"
[peer-groups.afi-safis.mp-graceful-restart.config]
enabled = true
[[dynamic-neighbors]]
[dynamic-neighbors.config]
prefix = "fd00::/64"
peer-group = "directors"
`

// Directors whose VTEPs have IPv6 addresses learn from each other through a reflector. Both keep what they
// know while the other's process, or the reflector, is gone, and it is complete afterwards:
//
//	director1, director2 --- switch --- reflector (GoBGP)
func TestEVPNOverIPv6(t *testing.T) {
	f := &fabric{Lab: netlab.ForTest(t), t: t, asn: 65000}
	f.underlay = f.Switch("underlay")
	f.director1, f.director2 = f.host("director1", 1), f.host("director2", 5)
	middle := f.host("reflector", 9)
	begin := func() *routerlab.GoBGP {
		t.Helper()
		reflector, err := routerlab.StartGoBGP(middle, gobgpOverlay)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if t.Failed() {
				t.Logf("GoBGP said:\n%s", reflector.Log())
			}
		})
		return reflector
	}
	reflector := begin()
	config := func(director int) *model.BGP {
		return &model.BGP{ASN: 65000, RouterID: vtep(director), Neighbors: []model.BGPNeighbor{{Address: netip.MustParseAddr("fd00::9"), ASN: 65000, Port: model.DefaultBGPPort,
			HoldTime: model.Duration(3e9), RestartTime: model.Duration(60e9), Families: []model.BGPFamily{model.BGPEVPN}}}}
	}
	at6 := func(director int) netip.Addr { return netip.MustParseAddr(fmt.Sprintf("fd00::%d", director)) }
	segment := func(director int, entries ...model.EVPNEntry) *model.EVPN {
		return &model.EVPN{Segments: []model.EVPNSegment{{VNI: 70000, VTEP: at6(director), Entries: entries}}}
	}
	first, second := segment(1, model.EVPNEntry{MAC: mac(1)}, entryOf(mac(1), vip)), segment(5, model.EVPNEntry{MAC: mac(5)}, entryOf(mac(5), vip))
	one, two := startSpeaker(t, f.director1), startSpeaker(t, f.director2)
	one.do(order{config(1), first})
	two.do(order{config(5), segment(5)})
	two.learns("the VIP", func(l model.EVPNLearned) bool {
		h := at(l, "", vip)
		return l.Complete && h.VTEP == at6(1) && h.MAC == mac(1) && h.Label == 70000 && len(l.VTEPs) == 1 && l.VTEPs[0].VTEP == at6(1)
	})
	two.do(order{EVPN: second})
	one.learns("that the VIP is taken", func(l model.EVPNLearned) bool { return at(l, "", vip).VTEP == at6(5) && at(l, "", vip).Sequence == 1 })

	// The first director's process is killed. The other one goes on knowing its MAC address; a new
	// process claims the VIP, and has it.
	if err := one.process.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	one.stop()
	netlab.WaitFor(t, "the reflector to lose the session", func() bool {
		out, err := reflector.Query("neighbor")
		if err != nil {
			t.Fatal(err)
		}
		return !has(out, "fd00::1 Establ")
	})
	if h := at(two.do(order{}).Learned, mac(1).String(), ""); h.VTEP != at6(1) {
		t.Errorf("without the process of the first director its MAC address is at %v", h.VTEP)
	}
	one = startSpeaker(t, f.director1)
	one.do(order{config(1), first})
	two.learns("that the VIP is taken back", func(l model.EVPNLearned) bool { return at(l, "", vip).VTEP == at6(1) && at(l, "", vip).Sequence == 2 })

	// The reflector is killed, and comes back. Before it has heard of the first director again it may say
	// that there is no more, so the second one must not have the VIP as an entry, too: it would take it.
	two.do(order{EVPN: segment(5, model.EVPNEntry{MAC: mac(5)})})
	if err := reflector.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	stale := func() int { return two.do(order{}).Status.Neighbors[0].EVPN.Stale }
	netlab.WaitFor(t, "the second director to lose the session", func() bool { return stale() > 0 })
	two.learns("nothing new", func(l model.EVPNLearned) bool {
		return !l.Complete && at(l, "", vip).VTEP == at6(1) && len(l.VTEPs) == 1
	})
	begin()
	two.learns("all again", func(l model.EVPNLearned) bool {
		return l.Complete && at(l, "", vip).VTEP == at6(1) && len(l.VTEPs) == 1
	})
	netlab.WaitFor(t, "nothing to be stale", func() bool { return stale() == 0 })
	if s := two.do(order{}).Status.Neighbors[0]; s.EVPN.Received != 3 || s.EVPN.Problem != "" {
		t.Errorf("after all is told the status is %+v", s.EVPN)
	}
}
