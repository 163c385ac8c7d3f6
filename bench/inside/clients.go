package inside

import (
	"encoding/binary"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync/atomic"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// MAC is where a frame goes.
type MAC [6]byte

// clients begin connections: each packet is the SYN of a new one.
type clients struct {
	frame []byte
	next  uint32 // the next connection's source port, and above it the last byte of its address
}

// networks counts the clients' networks so far: a director may still know their connections.
var networks atomic.Uint32

const (
	ethernetLen, ipLen, tcpLen = 14, 20, 20
	tcpSYN                     = 1 << 1
)

// newClients returns clients of a network of their own. Checksums are absent: no host receives what
// they send.
func newClients(vip netip.Addr, port uint16) *clients {
	frame := make([]byte, 64)
	binary.BigEndian.PutUint16(frame[12:], unix.ETH_P_IP)
	h := frame[ethernetLen:]
	h[0], h[8], h[9] = 0x45, 64, unix.IPPROTO_TCP
	binary.BigEndian.PutUint16(h[2:], ipLen+tcpLen)
	binary.BigEndian.PutUint32(h[12:], 10<<24|networks.Add(1)<<8&0xffff00)
	destination := vip.As4()
	copy(h[16:], destination[:])
	t := h[ipLen:]
	binary.BigEndian.PutUint16(t[2:], port)
	t[12], t[13] = tcpLen/4<<4, tcpSYN
	return &clients{frame: frame}
}

// connect begins the next connection, and returns where the program sends it. The frame itself is
// not sent.
func (c *clients) connect(program *ebpf.Program) (MAC, error) {
	h := c.frame[ethernetLen:]
	h[15] = byte(c.next >> 16)
	binary.BigEndian.PutUint16(h[ipLen:], uint16(c.next))
	c.next++
	out := make([]byte, len(c.frame))
	if _, err := program.Run(&ebpf.RunOptions{Data: c.frame, DataOut: out}); err != nil {
		return MAC{}, fmt.Errorf("run the director's program: %w", err)
	}
	return MAC(out), nil
}

// hops are the next hops of a service's connections: of all connections, if a handful of backends
// have even shares.
func hops(program *ebpf.Program, vip netip.Addr, port uint16) ([]MAC, error) {
	c, seen := newClients(vip, port), map[MAC]bool{}
	for range 256 {
		hop, err := c.connect(program)
		if err != nil {
			return nil, err
		}
		seen[hop] = true
	}
	return slices.Collect(maps.Keys(seen)), nil
}
