package doctor

import (
	"cmp"
	"fmt"
	"maps"
	"net"
	"path/filepath"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"weir.io/weir/internal/device"
)

// The names of weir's XDP programs (bpf/*.bpf.c).
const (
	directorProgram = "director"
	hostProgram     = "host_xdp"
	captureProgram  = "capture" // the director's during a capture
)

// pinPrefix begins the names of the director's pinned links.
const pinPrefix = "xdp-"

// programOf names the XDP program of an interface; empty: there is none.
func programOf(link netlink.Link) string {
	xdp := link.Attrs().Xdp
	if xdp == nil || !xdp.Attached {
		return ""
	}
	program, err := ebpf.NewProgramFromID(ebpf.ProgramID(xdp.ProgId))
	if err != nil {
		return "unknown"
	}
	defer program.Close()
	info, err := program.Info()
	if err != nil {
		return "unknown"
	}
	return info.Name
}

// pinned returns the interfaces that a director pinned a program for: while it
// runs, and after it until weir detach.
func pinned(bpffs string) map[string]bool {
	pins, _ := filepath.Glob(filepath.Join(bpffs, "weir", pinPrefix+"*")) // the pattern is not bad
	names := make(map[string]bool, len(pins))
	for _, pin := range pins {
		names[device.PinnedInterface(strings.TrimPrefix(filepath.Base(pin), pinPrefix))] = true
	}
	return names
}

// Attached says whether a director, or an agent, has left programs on interfaces: while it runs, and
// after it until weir detach.
func Attached(bpffs, role string) bool {
	if role == string(Agent) {
		pins, _ := filepath.Glob(filepath.Join(bpffs, "weir", "agent", "links", "*")) // the pattern is not bad
		return len(pins) > 0
	}
	return len(pinned(bpffs)) > 0
}

// exists checks that an interface is there and up.
func (x *examination) exists(name string) netlink.Link {
	check := "interface " + name
	link := x.link(name)
	switch {
	case link == nil:
		x.known(check, "there are: "+strings.Join(device.Candidates(maps.Values(x.links)), ", "), "there is no such interface")
		return nil
	case link.Attrs().Flags&net.FlagUp == 0:
		x.known(check, "ip link set "+name+" up", "is down")
	case link.Attrs().OperState == netlink.OperDown || link.Attrs().OperState == netlink.OperLowerLayerDown:
		x.known(check, "look at the cable or the other end", "has no carrier")
	default:
		x.ok(check, "is up, MTU %d", link.Attrs().MTU)
	}
	return link
}

// xdp checks how a program runs, or would run, on an interface. A running process looks after its
// programs all the time.
func (x *examination) xdp(link netlink.Link, own string) {
	if x.running {
		return
	}
	name := link.Attrs().Name
	check := "xdp " + name
	program := programOf(link)
	if program == captureProgram && own == directorProgram && x.pinned[name] {
		x.ok(check, "attached, and a capture runs, or ran when its process was killed: then the next start of weir run ends it")
		return
	}
	if program != "" && program != own {
		x.fail(check, "ip link set dev "+name+" xdp off, or ask its owner", "another XDP program is attached: %s (id %d)",
			program, link.Attrs().Xdp.ProgId)
		return
	}
	if program == own && link.Attrs().Xdp.AttachMode == nl.XDP_ATTACHED_SKB {
		x.warn(check, "use a network card whose driver has XDP", "attached in generic mode, which is slow")
		return
	}
	if program == own {
		x.ok(check, "attached in native mode")
		return
	}
	if own == directorProgram && len(x.pinned) > 0 {
		x.fail(check, "start weir run, and read what it logs", "not attached, though a director has run on this host and was not detached")
		return
	}
	features, err := device.XDPFeatures(link.Attrs().Index)
	switch {
	case err != nil:
		x.ok(check, "not attached; whether the driver has XDP, this kernel does not tell")
	case !features.Has(device.Basic):
		x.warn(check, "use a network card whose driver has XDP", "the driver has none: generic mode, which is slow, will be used")
	case link.Attrs().MTU > pageMTU && !features.Has(device.ScatterGather):
		x.fail(check, "ip link set "+name+" mtu 3500", "the driver takes no XDP program with MTU %d", link.Attrs().MTU)
	default:
		x.ok(check, "not attached; the driver has native XDP")
	}
}

// pageMTU is the MTU above which a packet no longer fits in one page, the headroom of XDP
// included.
const pageMTU = 3498

// Bits of ETHTOOL_GFLAGS (linux/ethtool.h).
const (
	flagTxVLAN = 1 << 7
	flagRxVLAN = 1 << 8
	flagLRO    = 1 << 15
)

// lro checks for a driver's own coalescing, which destroys what is forwarded.
func (x *examination) lro(link netlink.Link) {
	name := link.Attrs().Name
	flags, err := device.Ethtool(name, unix.ETHTOOL_GFLAGS)
	if err == nil && flags&flagLRO != 0 {
		x.fail("lro "+name, "ethtool -K "+name+" lro off", "is on: drivers refuse XDP with it")
	}
}

// rxVLAN checks that XDP sees the tags that tell segments apart.
func (x *examination) rxVLAN(link netlink.Link) {
	name := link.Attrs().Name
	flags, err := device.Ethtool(name, unix.ETHTOOL_GFLAGS)
	switch {
	case err != nil:
		x.warn("rxvlan "+name, "", "cannot be read: %v", err)
	case flags&flagRxVLAN != 0:
		x.fail("rxvlan "+name, "ethtool -K "+name+" rxvlan off",
			"is on: the card takes VLAN tags off, and XDP cannot tell segments apart")
	default:
		x.ok("rxvlan "+name, "is off: XDP sees VLAN tags")
	}
}

// txVLAN checks a veth's other end, which keeps tags beside the frame if it leaves them to offload: XDP sees none.
// From a network card tags come in the frame.
func (x *examination) txVLAN(link netlink.Link) {
	x.otherEnd(link, "txvlan", func(other string) (bool, error) {
		flags, err := device.Ethtool(other, unix.ETHTOOL_GFLAGS)
		return flags&flagTxVLAN != 0, err
	}, "leaves VLAN tags to offload: XDP cannot tell segments apart", "puts VLAN tags into frames")
}

// checksum checks a veth's other end, whose unfinished checksums stay so once XDP has forwarded the
// packet.
func (x *examination) checksum(link netlink.Link) {
	x.otherEnd(link, "checksum", func(other string) (bool, error) {
		on, err := device.Ethtool(other, unix.ETHTOOL_GTXCSUM)
		return on != 0, err
	}, "leaves checksums to offload: forwarded packets have wrong ones", "finishes checksums")
}

// otherEnd checks a veth's other end for what it leaves to offload.
func (x *examination) otherEnd(link netlink.Link, what string, leaves func(other string) (bool, error), bad, good string) {
	if link.Type() != "veth" {
		return
	}
	check, feature := what+" "+link.Attrs().Name, map[string]string{"checksum": "tx", "txvlan": "txvlan"}[what]
	peer := x.links[link.Attrs().ParentIndex]
	if peer == nil || link.Attrs().NetNsID >= 0 {
		x.warn(check, "ethtool -K PEER "+feature+" off, at its other end", "is a veth whose other end is in another namespace, which this check does not see: it must be one that %s", good)
		return
	}
	other := peer.Attrs().Name
	on, err := leaves(other)
	switch {
	case err != nil:
		x.warn(check, "", "offload of %s cannot be read: %v", other, err)
	case on:
		x.fail(check, "ethtool -K "+other+" "+feature+" off", "its other end, %s, %s", other, bad)
	default:
		x.ok(check, "its other end, %s, %s", other, good)
	}
}

// usualMTU is Ethernet's.
const usualMTU = 1500

// tunnelRoom checks that tenants' packets fit between the headers of tunnels.
func (x *examination) tunnelRoom(link netlink.Link) {
	vtep := &x.config.Director.VTEP
	if !vtep.Given() {
		return
	}
	name, need, what, asked := link.Attrs().Name, 0, "", false
	for i := range x.config.Segments {
		s := &x.config.Segments[i]
		if !s.ID.IsOverlay() {
			continue
		}
		mtu := cmp.Or(int(s.MTU), usualMTU)
		if outer := mtu + vtep.Overhead(); outer > need {
			need, what, asked = outer, fmt.Sprintf("packets of %d bytes in %s", mtu, s.ID), s.MTU != 0
		}
	}
	check, fix := "tunnels "+name, fmt.Sprintf("ip link set %s mtu %d, and the links behind it", name, need)
	switch have := link.Attrs().MTU; {
	case need == 0:
	case have >= need:
		x.ok(check, "MTU %d holds %s and the headers of tunnels, %d bytes", have, what, vtep.Overhead())
	case asked:
		x.fail(check, fix, "MTU %d is too small for %s, which segments[].mtu lets in, and the headers of tunnels, %d bytes", have, what, vtep.Overhead())
	default:
		x.warn(check, fix, "MTU %d is too small for %s and the headers of tunnels, %d bytes: senders are told to send less", have, what, vtep.Overhead())
	}
}
