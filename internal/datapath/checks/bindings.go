package checks

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"weir.io/weir/internal/datapath/abi"
	"weir.io/weir/internal/datapath/nexthop"
	"weir.io/weir/internal/model"
)

// A backend that answers ARP for a VIP on its own link takes the VIP's packets away from the
// directors now and then, because a host that asks believes the last answer. Only asking shows it.
// IPv6 needs no question: Linux answers only for addresses of the interface that was asked.
const (
	bindingEvery = 10 * time.Second // between two questions about a VIP
	bindingHolds = 3 * bindingEvery // how long an answer is believed
	bindingKept  = 10 * time.Minute // how long a binding that no check asks about is kept
)

// bindings asks links which hosts have VIPs, and keeps which of the backends there say that they do.
// It keeps nothing of other hosts: any host on a link can say anything, under any number of names.
type bindings struct {
	file *os.File // a packet socket
	raw  syscall.RawConn
	done sync.WaitGroup

	mu      sync.Mutex
	queried map[nexthop.Neighbor]time.Time
	said    map[binding]*saying
}

// saying is when a binding was last asked about, and when it was last made; zero: never.
type saying struct{ queried, heard time.Time }

// binding is a VIP on a link, and the MAC address of the host that says that it has the VIP.
type binding struct {
	nexthop.Neighbor
	by model.MAC
}

// ARP for IPv4 over Ethernet (RFC 826): how its packets begin, and their length.
const (
	arpKind    = "\x00\x01\x08\x00\x06\x04"
	arpLength  = 28
	arpRequest = 1
	arpReply   = 2
)

// openBindings starts to listen, on all links.
func openBindings() (*bindings, error) {
	socket, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("open a socket for ARP: %w", err)
	}
	c := &bindings{file: os.NewFile(uintptr(socket), "arp"), queried: map[nexthop.Neighbor]time.Time{}, said: map[binding]*saying{}}
	c.raw, err = c.file.SyscallConn()
	if err == nil {
		err = hearReplies(socket)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("listen for ARP: %w", err), c.file.Close())
	}
	c.done.Go(c.listen)
	return c, nil
}

// hearReplies makes a socket receive replies and nothing else.
func hearReplies(socket int) error {
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_H | unix.BPF_ABS, K: uint32(len(arpKind))}, // operation
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: arpReply, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: arpLength},
		{Code: unix.BPF_RET | unix.BPF_K, K: 0},
	}
	return errors.Join(
		unix.SetsockoptSockFprog(socket, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}),
		unix.Bind(socket, &unix.SockaddrLinklayer{Protocol: abi.BigEndian16(unix.ETH_P_ARP)}))
}

func (c *bindings) close() error {
	err := c.file.Close()
	c.done.Wait()
	return err
}

// listen keeps what replies say until the socket is closed.
func (c *bindings) listen() {
	var packet [arpLength]byte
	for {
		var n int
		var from unix.Sockaddr
		var failed error
		err := c.raw.Read(func(fd uintptr) bool {
			n, from, failed = unix.Recvfrom(int(fd), packet[:], 0)
			return failed != unix.EAGAIN
		})
		if err != nil {
			return
		}
		if link, is := from.(*unix.SockaddrLinklayer); failed == nil && is {
			c.hear(packet[:n], link.Ifindex)
		}
	}
}

// hear keeps a reply in which a backend says that it has a VIP.
func (c *bindings) hear(packet []byte, ifindex int) {
	if len(packet) < arpLength || string(packet[:len(arpKind)]) != arpKind {
		return
	}
	sender := netip.AddrFrom4([4]byte(packet[14:18]))
	c.mu.Lock()
	defer c.mu.Unlock()
	if s := c.said[binding{nexthop.Neighbor{Ifindex: ifindex, Address: sender}, model.MAC(packet[8:14])}]; s != nil {
		s.heard = time.Now()
	}
}

// by says whether a backend has said that it has a VIP, and asks for the VIP now and then.
func (c *bindings) by(mac model.MAC, vip nexthop.Neighbor, own nexthop.Hop) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	s := c.said[binding{vip, mac}]
	if s == nil {
		s = &saying{}
		c.said[binding{vip, mac}] = s
	}
	s.queried = now
	if now.Sub(c.queried[vip]) > bindingEvery {
		c.queried[vip] = now
		c.leaveOut(now)
		_ = c.query(vip, own) // on an error, the next request does as well
	}
	return now.Sub(s.heard) < bindingHolds
}

// leaveOut drops bindings that are not asked about any more: those of MAC addresses that backends had
// before. The lock is held.
func (c *bindings) leaveOut(now time.Time) {
	for one, s := range c.said {
		if now.Sub(s.queried) > bindingKept {
			delete(c.said, one)
		}
	}
}

// query broadcasts a request on the link.
func (c *bindings) query(vip nexthop.Neighbor, own nexthop.Hop) error {
	packet := []byte(arpKind)
	packet = binary.BigEndian.AppendUint16(packet, arpRequest)
	packet = append(append(packet, own.Source[:]...), own.Address.AsSlice()...)
	packet = append(append(packet, make([]byte, len(own.MAC))...), vip.Address.AsSlice()...)
	to := &unix.SockaddrLinklayer{Protocol: abi.BigEndian16(unix.ETH_P_ARP), Ifindex: vip.Ifindex, Halen: 6,
		Addr: [8]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}}
	var failed error
	err := c.raw.Write(func(fd uintptr) bool {
		failed = unix.Sendto(int(fd), packet, 0, to)
		return true
	})
	return errors.Join(err, failed)
}

// forget drops what is known of VIPs that are not asked for any more.
func (c *bindings) forget(asked func(vip netip.Addr) bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for vip := range c.queried {
		if !asked(vip.Address) {
			delete(c.queried, vip)
		}
	}
	for one := range c.said {
		if !asked(one.Address) {
			delete(c.said, one)
		}
	}
}
