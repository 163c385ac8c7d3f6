// Package nic tries what weir says to NICs with real drivers, of NICs that qemu emulates: rules by which
// packets of a flow come to a receive queue, and RSS. What counts is at which queue frames arrive, by the
// drivers' own counters.
//
// "make test-nic" boots guests that have these NICs. The other end of each wire is test/kernels, which sends
// the frames that a test asks for, and no others.
package nic

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weir.io/weir/internal/device"
	"weir.io/weir/lab/packet"
)

// card is an interface whose wire sends what is asked for.
type card struct {
	*testing.T
	name   string
	index  int
	mac    [6]byte
	socket int // for frames
	// counter is the driver's name for how many frames have come by a receive queue.
	counter string
	want    []uint64 // how many have come by each
}

// wireRequest is the EtherType of what is asked of the wire (test/kernels/wire.go).
const wireRequest = 0x88b5

// cardOf takes the interface of one of qemu's NICs, by its driver, on a machine that test/kernels has made.
func cardOf(t *testing.T, model, driver, counter string) *card {
	t.Helper()
	if !slices.Contains(strings.Split(os.Getenv("WEIR_NICS"), ","), model) {
		t.Skipf("this machine has no NIC %s of qemu's; make test-nic boots a guest that has one", model)
	}
	links, err := netlink.LinkList()
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range links {
		a := l.Attrs()
		path, err := os.Readlink(filepath.Join("/sys/class/net", a.Name, "device/driver"))
		if err != nil || filepath.Base(path) != driver || !strings.HasPrefix(a.HardwareAddr.String(), "52:54:00:00:00:") {
			continue
		}
		c := &card{T: t, name: a.Name, index: a.Index, mac: [6]byte(a.HardwareAddr), counter: counter}
		if err := netlink.LinkSetUp(l); err != nil {
			t.Fatal(err)
		}
		c.eventually("its link is up", func() bool {
			l, err := netlink.LinkByIndex(c.index)
			return err == nil && l.Attrs().OperState == netlink.OperUp
		})
		c.socket = c.open(0)
		if counter != "" {
			c.want = c.arrived()
		}
		return c
	}
	t.Fatalf("this guest has no interface of NIC %s with the driver %s", model, driver)
	return nil
}

// open opens a socket for the interface's frames, which gets those of an EtherType.
func (c *card) open(etherType uint16) int {
	c.Helper()
	wire := etherType<<8 | etherType>>8
	socket, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, int(wire))
	if err == nil {
		c.Cleanup(func() { unix.Close(socket) })
		err = unix.Bind(socket, &unix.SockaddrLinklayer{Protocol: wire, Ifindex: c.index})
	}
	if err != nil {
		c.Fatal(err)
	}
	return socket
}

func (c *card) eventually(claim string, holds func() bool) {
	c.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for !holds() {
		if time.Now().After(deadline) {
			c.Fatalf("%s: not seen within half a minute: %s", c.name, claim)
		}
		time.Sleep(5 * time.Millisecond) // between two looks at the condition
	}
}

// frame is one of a flow.
func (c *card) frame(f device.RuleFlow) []byte {
	headers := []packet.Header{packet.EthernetHeader{Dst: c.mac, Src: [6]byte{0x52, 0x54, 0, 0, 0, 0xfe}}}
	if f.Source.Addr().Is4() {
		headers = append(headers, packet.IPv4Header{Src: f.Source.Addr(), Dst: f.Destination.Addr()})
	} else {
		headers = append(headers, packet.IPv6Header{Src: f.Source.Addr(), Dst: f.Destination.Addr()})
	}
	if f.Protocol == unix.IPPROTO_TCP {
		headers = append(headers, packet.TCPHeader{Src: f.Source.Port(), Dst: f.Destination.Port(), Flags: 0x10})
	} else {
		headers = append(headers, packet.UDPHeader{Src: f.Source.Port(), Dst: f.Destination.Port()})
	}
	return packet.Build(append(headers, packet.Text("some text, so that the frame is no shorter than Ethernet's are"))...)
}

// ask has the wire send frames of a flow.
func (c *card) ask(times int, f device.RuleFlow) {
	c.Helper()
	frame := c.frame(f)
	request := append([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, c.mac[:]...)
	for _, number := range []int{wireRequest, times, len(frame)} {
		request = binary.BigEndian.AppendUint16(request, uint16(number))
	}
	if _, err := unix.Write(c.socket, append(request, frame...)); err != nil {
		c.Fatal("ask the wire:", err)
	}
}

// comesBy has frames of a flow sent, all of which come by a receive queue.
func (c *card) comesBy(queue int, times int, f device.RuleFlow) {
	c.Helper()
	c.want[queue] += uint64(times)
	c.ask(times, f)
	c.check(fmt.Sprintf("%d frames of %v come by queue %d", times, f, queue))
}

// check waits until as many frames have come as were sent, and compares what has come by which queue.
func (c *card) check(claim string) {
	c.Helper()
	sum := func(counts []uint64) (all uint64) {
		for _, n := range counts {
			all += n
		}
		return all
	}
	var got []uint64
	c.eventually(claim, func() bool { got = c.arrived(); return sum(got) >= sum(c.want) })
	if fmt.Sprint(got) != fmt.Sprint(c.want) {
		c.Fatalf("%s: %s: by the queues have come %d frames, want %d", c.name, claim, got, c.want)
	}
	c.Logf("%s: %s: by the queues have come %d", c.name, claim, got)
}

// arrived is how many frames have come by each receive queue, as "ethtool -S" says it.
func (c *card) arrived() (counts []uint64) {
	c.Helper()
	all := c.statistics()
	for queue := 0; ; queue++ {
		count, is := all[fmt.Sprintf(c.counter, queue)]
		if !is {
			break
		}
		counts = append(counts, count)
	}
	if len(counts) < 2 {
		c.Fatalf("%s has %d counters %s, of %v", c.name, len(counts), c.counter, all)
	}
	return counts
}

// statistics are ETHTOOL_GSTRINGS of ETH_SS_STATS, and ETHTOOL_GSTATS. They are read here once more, because
// weir's own code for this is under test.
func (c *card) statistics() map[string]uint64 {
	c.Helper()
	const stringLength = 32
	info := struct { // struct ethtool_sset_info
		command, _ uint32
		mask       uint64
		count, _   uint32
	}{command: 0x37, mask: 1 << 1}
	c.ethtool(unsafe.Pointer(&info))
	names := make([]uint32, 3+info.count*stringLength/4) // struct ethtool_gstrings
	names[0], names[1], names[2] = 0x1b, 1, info.count
	c.ethtool(unsafe.Pointer(&names[0]))
	values := make([]uint64, 1+info.count) // struct ethtool_stats
	*(*[2]uint32)(unsafe.Pointer(&values[0])) = [2]uint32{0x1d, info.count}
	c.ethtool(unsafe.Pointer(&values[0]))
	text := unsafe.Slice((*byte)(unsafe.Pointer(&names[0])), 4*len(names))[12:]
	all := map[string]uint64{}
	for i := range int(info.count) {
		all[unix.ByteSliceToString(text[i*stringLength:(i+1)*stringLength])] = values[1+i]
	}
	return all
}

func (c *card) ethtool(command unsafe.Pointer) {
	c.Helper()
	request := struct { // struct ifreq
		name [unix.IFNAMSIZ]byte
		data unsafe.Pointer
		_    [16]byte
	}{data: command}
	copy(request.name[:unix.IFNAMSIZ-1], c.name)
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(c.socket), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&request))); errno != 0 {
		c.Fatal("ethtool:", errno)
	}
}

// switchOff is "ethtool -K NAME ntuple off".
func (c *card) switchOff() {
	c.Helper()
	flags, err := device.Ethtool(c.name, 0x25) // ETHTOOL_GFLAGS
	if err == nil {
		err = device.SetEthtool(c.name, 0x26, flags&^(1<<27)) // ETHTOOL_SFLAGS, ETH_FLAG_NTUPLE
	}
	if err != nil {
		c.Fatal(err)
	}
}

func flow(protocol uint8, source, destination string) device.RuleFlow {
	return device.RuleFlow{Protocol: protocol, Source: netip.MustParseAddrPort(source), Destination: netip.MustParseAddrPort(destination)}
}

func tcp(source, destination string) device.RuleFlow {
	return flow(unix.IPPROTO_TCP, source, destination)
}
func udp(source, destination string) device.RuleFlow {
	return flow(unix.IPPROTO_UDP, source, destination)
}
