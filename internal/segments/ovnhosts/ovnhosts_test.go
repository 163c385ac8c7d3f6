package ovnhosts

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"weir.io/weir/internal/model"
	"weir.io/weir/internal/segments"
	"weir.io/weir/lab/etcdlab"
	"weir.io/weir/lab/ovnlab"
)

// The databases listen in a network namespace of the tests' own.
func TestMain(m *testing.M) { etcdlab.Isolated(m) }

const deadline = 60 * time.Second

// sink takes what the source has said, as a datapath does.
type sink struct {
	mu    sync.Mutex
	hosts map[model.Segment][]model.SegmentHost
	vnis  map[model.Segment]uint32
	macs  map[model.Segment][]model.SegmentMAC
	vteps []netip.Addr
	more  chan struct{} // closed by the next change
}

// SetHosts implements segments.Sink.
func (s *sink) SetHosts(hosts map[model.Segment][]model.SegmentHost) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hosts = hosts
	close(s.more)
	s.more = make(chan struct{})
	return nil
}

// SetVNIs implements segments.Sink.
func (s *sink) SetVNIs(vnis map[model.Segment]uint32) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.vnis = vnis
	return nil
}

// SetMACs implements segments.Sink.
func (s *sink) SetMACs(macs map[model.Segment][]model.SegmentMAC) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.macs = macs
	return nil
}

// SetVTEPs implements segments.Sink.
func (s *sink) SetVTEPs(vteps []netip.Addr) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.vteps = vteps
	return nil
}

var tenant = model.Segment{Kind: model.SegmentGeneve, ID: 5001}

// world is a director with an OVN.
type world struct {
	*testing.T
	n        *ovnlab.OVN
	to       *sink
	segments *segments.Segments
	source   *Source
	config   model.Config
}

func start(t *testing.T, dir string, c model.Config, n *ovnlab.OVN) *world {
	t.Helper()
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	w := &world{T: t, n: n, to: &sink{more: make(chan struct{})}, config: c}
	w.segments = segments.New(segments.Deps{Sink: w.to, Directory: dir, Log: log})
	w.source = New(Deps{Segments: w.segments, Owner: "lb1", Log: log})
	t.Cleanup(w.source.Close)
	w.set()
	return w
}

func (w *world) set() {
	w.Helper()
	w.config.SetDefaults()
	if err := w.config.Validate(); err != nil {
		w.Fatal(err)
	}
	w.source.Set(context.Background(), &w.config)
}

func configFor(n *ovnlab.OVN) model.Config {
	return model.Config{Director: model.Director{Interfaces: []string{"eth0"}, VTEP: model.VTEP{Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.9")}}},
		OVN: model.OVN{Endpoints: []string{n.SB}, Chassis: "weir-lb1"}, Segments: []model.SegmentSettings{{ID: tenant, Network: "net"}}}
}

// until waits until nothing is wrong. What is asked for may be no change of hosts: it is looked at again, too.
func (w *world) until(what string, wrong func() error) {
	w.Helper()
	end := time.After(deadline)
	for {
		w.to.mu.Lock()
		more := w.to.more
		w.to.mu.Unlock()
		err := wrong()
		if err == nil {
			return
		}
		select {
		case <-more:
		case <-time.After(50 * time.Millisecond): // a change of the status alone is told to nobody
		case <-end:
			w.Fatalf("never: %s: %v; the status is %+v, the problems %+v", what, err, w.source.Status(), w.source.Problems())
		}
	}
}

// has waits until the datapath knows exactly these hosts of a segment: "10.0.0.1 at 192.0.2.1".
func (w *world) has(id model.Segment, want ...string) {
	w.Helper()
	w.until(fmt.Sprintf("%s has %v", id, want), func() error {
		w.to.mu.Lock()
		defer w.to.mu.Unlock()
		var got []string
		for _, h := range w.to.hosts[id] {
			got = append(got, fmt.Sprintf("%v at %v", h.Address, h.VTEP))
		}
		if slices.Sort(got); !slices.Equal(got, want) {
			return fmt.Errorf("it has %v", got)
		}
		return nil
	})
}

// says waits until a problem of a part says something; nothing: until there is none of that part.
func (w *world) says(part, words string) {
	w.Helper()
	w.until(fmt.Sprintf("a problem of %s says %q", part, words), func() error {
		problems := append(w.source.Problems(), w.segments.Problems(&w.config)...)
		at := slices.IndexFunc(problems, func(p model.Problem) bool { return p.Part == part })
		if (at < 0) != (words == "") || at >= 0 && !strings.Contains(problems[at].Text, words) {
			return fmt.Errorf("the problems are %+v", problems)
		}
		return nil
	})
}

func (w *world) registered() {
	w.Helper()
	w.until("the director is a chassis", func() error {
		if s := w.source.Status(); s == nil || !s.Registered {
			return errors.New("it is not")
		}
		return nil
	})
}

// Hosts of a segment are those that OVN has on hosts, with what their tunnels' headers must say; a move is followed, and
// so is another network.
func TestHostsOfOVN(t *testing.T) {
	t.Parallel()
	n := ovnlab.New(t, ovnlab.Options{})
	hv1, hv2 := n.Host("hv1", "192.0.2.1", "geneve"), n.Host("hv2", "192.0.2.2", "geneve,vxlan")
	n.NBctl("--wait=hv", "ls-add", "other", "--", "ls-add", "net",
		"--", "lsp-add", "net", "a", "--", "lsp-set-addresses", "a", "fa:16:3e:00:00:05 10.0.0.5 2001:db8::5",
		"--", "lsp-add", "net", "b", "--", "lsp-set-addresses", "b", "fa:16:3e:00:00:06 10.0.0.6",
		"--", "lsp-add", "net", "nowhere", "--", "lsp-set-addresses", "nowhere", "fa:16:3e:00:00:07 10.0.0.7",
		"--", "lsp-add", "other", "c", "--", "lsp-set-addresses", "c", "fa:16:3e:00:00:08 10.0.0.5")
	hv1.Plug("a")
	hv2.Plug("b")
	hv2.Plug("c")
	w := start(t, t.TempDir(), configFor(n), n)
	w.has(tenant, "10.0.0.5 at 192.0.2.1", "10.0.0.6 at 192.0.2.2", "2001:db8::5 at 192.0.2.1")
	w.registered()
	w.says("ovn", "")
	w.says("geneve:5001", "")
	port := strings.TrimSpace(n.SBctl("--bare", "--columns=tunnel_key", "find", "Port_Binding", "logical_port=a"))
	key := strings.TrimSpace(n.SBctl("--bare", "--columns=tunnel_key", "find", "Datapath_Binding", "external_ids:name=net"))
	of := w.segments.Status(&w.config).Segments[0]
	if h := of.Hosts[0]; h.MAC.String() != "fa:16:3e:00:00:05" || fmt.Sprint(h.VNI) != key || h.Options.String() != fmt.Sprintf("0102:80:0000000%s", port) || h.Source != model.HostsOfOVN || fmt.Sprint(of.VNI) != key {
		t.Errorf("port %s of network %s is %+v, in VNI %d", port, key, h, of.VNI)
	}

	// A VM moves: as soon as the other host has it, packets go there.
	hv1.Unplug("a")
	hv2.Plug("a")
	w.has(tenant, "10.0.0.5 at 192.0.2.2", "10.0.0.6 at 192.0.2.2", "2001:db8::5 at 192.0.2.2")

	w.config.Segments[0].Network = "other"
	w.set()
	w.has(tenant, "10.0.0.5 at 192.0.2.2")
	w.config.Segments[0].Network = "none"
	w.set()
	w.has(tenant)
	w.says("geneve:5001", "none")
	w.config.Segments[0].Network = "net"
	w.set()
	w.has(tenant, "10.0.0.5 at 192.0.2.2", "10.0.0.6 at 192.0.2.2", "2001:db8::5 at 192.0.2.2")
	w.says("geneve:5001", "")

	// Another name leaves no chassis behind, and no OVN no host.
	w.config.OVN.Chassis = "weir-2"
	w.set()
	w.registered()
	if names := n.SBctl("--bare", "--columns=name", "list", "Chassis"); strings.Contains(names, "weir-lb1") || !strings.Contains(names, "weir-2") {
		t.Errorf("the chassis are %q", names)
	}
	w.config.OVN, w.config.Segments[0].Network = model.OVN{}, ""
	w.set()
	w.has(tenant)
	if names := n.SBctl("--bare", "--columns=name", "list", "Chassis"); strings.Contains(names, "weir-2") {
		t.Errorf("without OVN the chassis are %q", names)
	}
	if w.source.Status() != nil || len(w.source.Problems()) > 0 {
		t.Errorf("without OVN there is %+v, %v", w.source.Status(), w.source.Problems())
	}
}

// Another list of endpoints that has one of those before is of the same OVN: the director stays among its chassis, or
// hosts would take their tunnels down.
func TestEndpointsOfOVN(t *testing.T) {
	t.Parallel()
	n := ovnlab.New(t, ovnlab.Options{})
	w := start(t, t.TempDir(), configFor(n), n)
	w.registered()
	row := func() string { return n.SBctl("--bare", "--columns=_uuid", "find", "Chassis", "name=weir-lb1") }
	before := row()
	for _, endpoints := range [][]string{{n.TCP, n.SB}, {n.TCP}} {
		w.config.OVN.Endpoints = endpoints
		w.set()
		w.registered()
		if after := row(); after != before {
			t.Errorf("with endpoints %v the chassis %s is %s", endpoints, before, after)
		}
	}
}

// What OVN has said last goes on while its database is away, and in the next process; then what has changed counts.
func TestOVNIsAway(t *testing.T) {
	t.Parallel()
	n := ovnlab.New(t, ovnlab.Options{})
	hv1, hv2 := n.Host("hv1", "192.0.2.1", "geneve"), n.Host("hv2", "192.0.2.2", "geneve")
	n.NBctl("--wait=hv", "ls-add", "net", "--", "lsp-add", "net", "a", "--", "lsp-set-addresses", "a", "fa:16:3e:00:00:05 10.0.0.5")
	hv1.Plug("a")
	dir := t.TempDir()
	w := start(t, dir, configFor(n), n)
	w.has(tenant, "10.0.0.5 at 192.0.2.1")
	ctx, end := context.WithCancel(t.Context())
	end()
	w.segments.Run(ctx) // writes what is known
	n.StopSB()
	w.says("ovn", "OVN may say something else by now")
	w.has(tenant, "10.0.0.5 at 192.0.2.1")
	w.source.Close()

	again := start(t, dir, configFor(n), n)
	again.says("ovn", "OVN may say something else by now")
	again.has(tenant, "10.0.0.5 at 192.0.2.1")
	if s := again.source.Status(); s.Connected || s.Known || s.Problem == "" {
		t.Errorf("without a database the status is %+v", s)
	}
	hv1.Unplug("a")
	hv2.Plug("a")
	n.StartSB()
	again.has(tenant, "10.0.0.5 at 192.0.2.2")
	again.says("ovn", "")
}

// What keeps packets from OVN's hosts is said, and for as long as it does.
func TestOVNProblems(t *testing.T) {
	t.Parallel()
	n := ovnlab.New(t, ovnlab.Options{})
	h := n.Host("hv1", "192.0.2.1", "vxlan")
	n.NBctl("--wait=hv", "ls-add", "net", "--", "lsp-add", "net", "a", "--", "lsp-set-addresses", "a", "fa:16:3e:00:00:05 10.0.0.5")
	h.Plug("a")
	c := configFor(n)
	c.OVN.Chassis = "hv1"
	w := start(t, t.TempDir(), c, n)
	w.says("ovn chassis", "hv1")
	w.says("geneve:5001", "no end of tunnels that this host could reach")
	w.has(tenant)
	w.config.OVN.Chassis = "weir-lb1"
	w.set()
	w.registered()
	w.says("ovn chassis", "")

	inVXLAN := model.Segment{Kind: model.SegmentVXLAN, ID: 1}
	w.config.Segments[0].ID = inVXLAN
	w.set()
	w.has(inVXLAN, "10.0.0.5 at 192.0.2.1")
	w.says("vxlan:1", "")
	w.config.Director.VTEP.VXLANPort = 4790
	w.set()
	w.says("vxlan:1", "takes vxlan at UDP port 4789, and the director sends to 4790")
	w.has(inVXLAN)
	w.config.Director.VTEP.VXLANPort = 0
	w.set()
	w.has(inVXLAN, "10.0.0.5 at 192.0.2.1")

	n.NBctl("--wait=sb", "set", "NB_Global", ".", "ipsec=true")
	w.says("ovn ipsec", "encrypts")
	n.NBctl("--wait=sb", "set", "NB_Global", ".", "ipsec=false")
	w.says("ovn ipsec", "")

	// A port that is at the director has to have its MAC address.
	n.NBctl("lsp-add", "net", "vip", "--", "lsp-set-addresses", "vip", "02:00:00:00:00:09 10.0.0.100", "--", "lsp-set-options", "vip", "requested-chassis=weir-lb1")
	w.says("vxlan:1", "OVN sends packets for port vip to 02:00:00:00:00:09")
	w.config.Segments[0].MAC = model.MAC{2, 0, 0, 0, 0, 9}
	w.set()
	w.says("vxlan:1", "")
	w.has(inVXLAN, "10.0.0.5 at 192.0.2.1")

	// A virtual port is where one of its parents is; it is no port of the director's.
	n.NBctl("lsp-add", "net", "shared", "--", "lsp-set-addresses", "shared", "02:00:00:00:00:0a 10.0.0.101", "--", "lsp-set-type", "shared", "virtual",
		"--", "lsp-set-options", "shared", "virtual-ip=10.0.0.101", "virtual-parents=vip,a")
	n.NBctl("wait-until", "Logical_Switch_Port", "shared", "up=true")
	w.says("vxlan:1", "")
	n.SBctl("set", "Port_Binding", "shared", "virtual_parent=a", "chassis="+strings.TrimSpace(n.SBctl("--bare", "--columns=_uuid", "find", "Chassis", "name=hv1")))
	w.says("vxlan:1", "virtual port shared to port a on host hv1")
	n.SBctl("clear", "Port_Binding", "shared", "chassis", "virtual_parent")
	w.says("vxlan:1", "")
	n.NBctl("lsp-set-addresses", "shared", "02:00:00:00:00:09 10.0.0.101")
	w.says("vxlan:1", "port shared has this director's MAC address and is virtual")
	n.NBctl("lsp-del", "shared")
	w.says("vxlan:1", "")

	w.source.Leave()
	if names := n.SBctl("--bare", "--columns=name", "list", "Chassis"); strings.TrimSpace(names) != "hv1" {
		t.Errorf("after the director has left the chassis are %q", names)
	}
}
