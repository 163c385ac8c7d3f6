package device

import (
	"fmt"
	"unsafe"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Channels are an interface's numbers of queues (struct ethtool_channels): those that only receive, only
// send, do something else, or receive and send.
type Channels struct {
	Receive, Send, Other, Combined uint32
}

// Rings are how many packets the queues of an interface hold (struct ethtool_ringparam).
type Rings struct {
	Receive, Send uint32
}

// commands of linux/ethtool.h.
const (
	getRingSizes = 0x10 // ETHTOOL_GRINGPARAM
	setRingSizes = 0x11 // ETHTOOL_SRINGPARAM
	getHash      = 0x29 // ETHTOOL_GRXFH
	setHash      = 0x2a // ETHTOOL_SRXFH
	getChannels  = 0x3c // ETHTOOL_GCHANNELS
	setChannels  = 0x3d // ETHTOOL_SCHANNELS
)

// channels is struct ethtool_channels.
type channels struct {
	command   uint32
	most, now Channels
}

// ringSizes is struct ethtool_ringparam.
type ringSizes struct {
	command   uint32
	most, now struct{ receive, mini, jumbo, send uint32 }
}

// ChannelsOf returns how many queues an interface has, and how many it can have. A driver that does not say
// gives unix.EOPNOTSUPP, here and for everything below.
func ChannelsOf(name string) (now, most Channels, err error) {
	c, err := readChannels(name)
	return c.now, c.most, err
}

func readChannels(name string) (channels, error) {
	c := channels{command: getChannels}
	if err := ethtool(name, unsafe.Pointer(&c)); err != nil {
		return c, fmt.Errorf("%s: read the number of queues: %w", name, err)
	}
	return c, nil
}

// SetChannels gives an interface other numbers of queues. Most drivers begin anew with it, and lose the
// packets that are under way.
func SetChannels(name string, want Channels) error {
	c, err := readChannels(name)
	if err != nil {
		return err
	}
	c.command, c.now = setChannels, want
	if err := ethtool(name, unsafe.Pointer(&c)); err != nil {
		return fmt.Errorf("%s: set the number of queues: %w", name, err)
	}
	return nil
}

// RingsOf returns how many packets an interface's queues hold, and how many they can hold.
func RingsOf(name string) (now, most Rings, err error) {
	r, err := readRings(name)
	return Rings{r.now.receive, r.now.send}, Rings{r.most.receive, r.most.send}, err
}

func readRings(name string) (ringSizes, error) {
	r := ringSizes{command: getRingSizes}
	if err := ethtool(name, unsafe.Pointer(&r)); err != nil {
		return r, fmt.Errorf("%s: read the ring sizes: %w", name, err)
	}
	return r, nil
}

// SetRings has an interface's queues hold another number of packets. Rings for small and for jumbo frames
// stay as they are.
func SetRings(name string, want Rings) error {
	r, err := readRings(name)
	if err != nil {
		return err
	}
	r.command, r.now.receive, r.now.send = setRingSizes, want.Receive, want.Send
	if err := ethtool(name, unsafe.Pointer(&r)); err != nil {
		return fmt.Errorf("%s: set the ring sizes: %w", name, err)
	}
	return nil
}

// HashFields are what RSS hashes of a packet: bits RXH_ of linux/ethtool.h.
type HashFields uint64

// The fields that matter here.
const (
	HashAddresses HashFields = 1<<4 | 1<<5 // RXH_IP_SRC, RXH_IP_DST
	HashPorts     HashFields = 1<<6 | 1<<7 // RXH_L4_B_0_1, RXH_L4_B_2_3
)

// The packets that RSS may hash differently: UDP_V4_FLOW and UDP_V6_FLOW.
const (
	HashedUDP4 uint32 = 0x02
	HashedUDP6 uint32 = 0x06
)

// HashFieldsOf returns what RSS hashes of such packets.
func HashFieldsOf(name string, packets uint32) (HashFields, error) {
	request := ruleRequest{command: getHash, kind: packets}
	if err := ethtool(name, unsafe.Pointer(&request)); err != nil {
		return 0, fmt.Errorf("%s: read what RSS hashes: %w", name, err)
	}
	return HashFields(request.data), nil
}

// SetHashFields has RSS hash these fields of such packets.
func SetHashFields(name string, packets uint32, fields HashFields) error {
	request := ruleRequest{command: setHash, kind: packets, data: uint64(fields)}
	if err := ethtool(name, unsafe.Pointer(&request)); err != nil {
		return fmt.Errorf("%s: set what RSS hashes: %w", name, err)
	}
	return nil
}

// NamespaceID tells network namespaces apart that are there at the same time: that of the calling thread.
func NamespaceID() (uint64, error) {
	var at unix.Stat_t
	if err := unix.Stat("/proc/thread-self/ns/net", &at); err != nil {
		return 0, fmt.Errorf("look at the network namespace: %w", err)
	}
	return at.Ino, nil
}

// QueueCount returns how many receive queues an interface has.
func QueueCount(link netlink.Link) (int, error) {
	name := link.Attrs().Name
	if now, _, err := ChannelsOf(name); err == nil && now.Receive+now.Combined > 0 {
		return int(now.Receive + now.Combined), nil
	}
	if n, err := ReceiveQueues(name); err == nil && n > 0 {
		return int(n), nil
	}
	return max(1, link.Attrs().NumRxQueues), nil // a driver need not say it
}
