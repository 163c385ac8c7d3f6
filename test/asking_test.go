package test

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"golang.org/x/sys/unix"

	"weir.io/weir/lab/netlab"
)

// asker asks a link again and again which hosts have some addresses, and notes the hosts that claim
// them, asked or not.
type asker struct {
	fd      int
	port    *netlab.Port
	from    map[bool]netip.Addr // key: whether it is IPv6
	ask     []netip.Addr
	stopped chan struct{}
	running sync.WaitGroup

	mu    sync.Mutex
	heard map[netip.Addr][]string    // MAC addresses in order of changes
	came  map[netip.Addr][]time.Time // frames, by the kernel's clock when they came in
}

// newAsker begins to ask through a port, with the addresses of its host.
func newAsker(t *testing.T, port *netlab.Port, from4, from6 netip.Addr, ask []netip.Addr) *asker {
	t.Helper()
	a := &asker{port: port, from: map[bool]netip.Addr{false: from4, true: from6}, ask: ask, stopped: make(chan struct{}),
		heard: map[netip.Addr][]string{}, came: map[netip.Addr][]time.Time{}}
	err := port.Host.Do(func() (err error) {
		all := binary.NativeEndian.Uint16([]byte{0, unix.ETH_P_ALL})
		if a.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, int(all)); err != nil {
			return err
		}
		if err := unix.SetsockoptInt(a.fd, unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1); err != nil {
			return err
		}
		return unix.SetsockoptTimeval(a.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 100_000})
	})
	if err != nil {
		t.Fatal("listen to a link:", err)
	}
	a.running.Go(a.listen)
	a.running.Go(a.repeat)
	t.Cleanup(func() {
		close(a.stopped)
		a.running.Wait()
		unix.Close(a.fd)
	})
	return a
}

func (a *asker) isOver() bool {
	select {
	case <-a.stopped:
		return true
	default:
		return false
	}
}

// repeat asks for all addresses every 20 ms.
func (a *asker) repeat() {
	for !a.isOver() {
		for _, address := range a.ask {
			_ = a.send(a.question(address)) // the port may be down
		}
		time.Sleep(20 * time.Millisecond) // between two rounds
	}
}

func (a *asker) send(frame []byte) error {
	return unix.Sendto(a.fd, frame, 0, &unix.SockaddrLinklayer{Ifindex: a.port.Index})
}

func (a *asker) question(address netip.Addr) []byte {
	from := a.from[address.Is6()]
	if address.Is4() {
		return frameOf(&layers.Ethernet{SrcMAC: a.port.MAC, DstMAC: layers.EthernetBroadcast, EthernetType: layers.EthernetTypeARP},
			arpOf(layers.ARPRequest, a.port.MAC, from, make([]byte, 6), address))
	}
	group := netip.MustParseAddr("ff02::1:ff00:0").As16()
	last := address.As16()
	copy(group[13:], last[13:])
	ip := &layers.IPv6{Version: 6, NextHeader: layers.IPProtocolICMPv6, HopLimit: 255, SrcIP: from.AsSlice(), DstIP: group[:]}
	icmp := &layers.ICMPv6{TypeCode: layers.CreateICMPv6TypeCode(layers.ICMPv6TypeNeighborSolicitation, 0)}
	_ = icmp.SetNetworkLayerForChecksum(ip) // ip is a network layer
	return frameOf(&layers.Ethernet{SrcMAC: a.port.MAC, DstMAC: append(net.HardwareAddr{0x33, 0x33}, group[12:]...), EthernetType: layers.EthernetTypeIPv6}, ip, icmp,
		&layers.ICMPv6NeighborSolicitation{TargetAddress: address.AsSlice(), Options: layers.ICMPv6Options{{Type: layers.ICMPv6OptSourceAddress, Data: a.port.MAC}}})
}

func arpOf(operation uint16, senderMAC net.HardwareAddr, sender netip.Addr, targetMAC net.HardwareAddr, target netip.Addr) *layers.ARP {
	return &layers.ARP{AddrType: layers.LinkTypeEthernet, Protocol: layers.EthernetTypeIPv4, HwAddressSize: 6, ProtAddressSize: 4, Operation: operation,
		SourceHwAddress: senderMAC, SourceProtAddress: sender.AsSlice(), DstHwAddress: targetMAC, DstProtAddress: target.AsSlice()}
}

func frameOf(list ...gopacket.SerializableLayer) []byte {
	buffer := gopacket.NewSerializeBuffer()
	if err := gopacket.SerializeLayers(buffer, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, list...); err != nil {
		panic(err) // what the tests write can be written
	}
	return buffer.Bytes()
}

func (a *asker) listen() {
	frame, control := make([]byte, 4096), make([]byte, 128)
	for !a.isOver() {
		n, about, _, from, err := unix.Recvmsg(a.fd, frame, control, 0)
		if ll, is := from.(*unix.SockaddrLinklayer); err != nil || is && ll.Pkttype == unix.PACKET_OUTGOING {
			continue
		}
		at := cameAt(control[:about])
		p := gopacket.NewPacket(frame[:n], layers.LayerTypeEthernet, gopacket.NoCopy)
		if arp, is := p.Layer(layers.LayerTypeARP).(*layers.ARP); is {
			vip, _ := netip.AddrFromSlice(arp.SourceProtAddress)
			a.note(vip, arp.SourceHwAddress, at)
		}
		if na, is := p.Layer(layers.LayerTypeICMPv6NeighborAdvertisement).(*layers.ICMPv6NeighborAdvertisement); is && len(na.Options) == 1 {
			vip, _ := netip.AddrFromSlice(na.TargetAddress)
			a.note(vip, na.Options[0].Data, at)
		}
	}
}

// cameAt is when a frame came in: the listener may read it much later.
func cameAt(control []byte) time.Time {
	messages, _ := unix.ParseSocketControlMessage(control) // the kernel has written them
	for _, m := range messages {
		if m.Header.Type == unix.SCM_TIMESTAMPNS && len(m.Data) >= 16 {
			return time.Unix(int64(binary.NativeEndian.Uint64(m.Data)), int64(binary.NativeEndian.Uint64(m.Data[8:])))
		}
	}
	return time.Now()
}

func (a *asker) note(vip netip.Addr, mac net.HardwareAddr, at time.Time) {
	if !slices.Contains(a.ask, vip) {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.came[vip] = append(a.came[vip], at)
	if list := a.heard[vip]; len(list) == 0 || list[len(list)-1] != mac.String() {
		a.heard[vip] = append(list, mac.String())
	}
}

// owner returns which host claimed an address last, and how often the owner has changed.
func (a *asker) owner(vip netip.Addr) (mac string, changes int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if list := a.heard[vip]; len(list) > 0 {
		return list[len(list)-1], len(list) - 1
	}
	return "nobody", 0
}

// frames returns how many frames have claimed an address since then.
func (a *asker) frames(vip netip.Addr, since time.Time) (n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, at := range a.came[vip] {
		if at.After(since) {
			n++
		}
	}
	return n
}

func (a *asker) String() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return fmt.Sprint(a.heard)
}
