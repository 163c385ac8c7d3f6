// Package answers compares what a director says beforehand that it would do with a packet (weir
// explain) with what it then does with that packet, and with the placement that internal/engine
// works out in Go. It also compares what the director says that a change would move with what then
// moves. Random packets of random configurations are really sent, and caught on the director's
// links.
package answers

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"weir.io/weir/bench/inside"
	"weir.io/weir/internal/api"
	"weir.io/weir/internal/model"
	"weir.io/weir/lab/netlab"
	"weir.io/weir/lab/process"
)

// Lab is a director between clients and backends, neither of which answers by itself:
//
//	clients 10.8.0.0/16, 2001:db8:8::/48 --- eth0 director eth1 --- backends 10.7.0.0/16, 2001:db8:7::/48
type Lab struct {
	director *process.Weir
	client   *api.Client
	sides    [2]*wire // the clients' and the backends'
	state    *state
}

// wire is a link's end opposite the director, and what comes in there.
type wire struct {
	name     string // of the director's end
	own      net.HardwareAddr
	director net.HardwareAddr
	socket   int
	buffer   []byte
	aside    []byte // the kernel's control messages about a frame
}

const (
	clientSide = iota
	backendSide
)

// clients is the number of clients' addresses in each family.
const clients = 8

func clientAddress(is4 bool, n int) netip.Addr {
	if is4 {
		return netip.AddrFrom4([4]byte{10, 8, 0, byte(1 + n)})
	}
	return netip.MustParseAddr(fmt.Sprintf("2001:db8:8::%x", 1+n))
}

// limits keep the maps small enough to be read as a whole many times.
var limits = model.Limits{Services: 64, Backends: 256, RingMemory: 4 << 20, Fragments: 256, Flows: 1 << 16}

// New runs a director in a lab.
func New(ctx context.Context, lab *netlab.Lab) (*Lab, error) {
	director, clientHost, backendHost := lab.Host("director"), lab.Host("clients"), lab.Host("backends")
	for _, h := range []*netlab.Host{clientHost, backendHost} {
		h.Sysctl("net.ipv6.conf.all.disable_ipv6", "1") // no multicast of its own
		h.Sysctl("net.ipv6.conf.default.disable_ipv6", "1")
	}
	links := []*netlab.Link{
		lab.Link(director, clientHost, netlab.LinkOptions{XDP: true, Tagged: true, A: []string{"10.8.255.1/16", "2001:db8:8::ffff/48"}}),
		lab.Link(director, backendHost, netlab.LinkOptions{XDP: true, A: []string{"10.7.255.1/16", "2001:db8:7::ffff/48"}}),
	}
	l := &Lab{}
	for i, link := range links {
		link.B.ReceiveXDP()
		for n := range clients {
			if i == clientSide {
				director.Neighbor(link.A.Name, clientAddress(true, n).String(), link.B.MAC)
				director.Neighbor(link.A.Name, clientAddress(false, n).String(), link.B.MAC)
			}
		}
	}
	if err := lab.Err(); err != nil {
		return nil, err
	}
	// What the kernel does with packets that it gets is not tested here.
	if _, err := process.Run(ctx, director, "nft", `table inet silent {
		chain out { type filter hook output priority 0; policy drop; oifname "lo" accept; }
		chain through { type filter hook forward priority 0; policy drop; }
	}`); err != nil {
		return nil, fmt.Errorf("silence the director's kernel: %w", err)
	}
	for i, link := range links {
		w, err := open(link)
		if err != nil {
			return nil, errors.Join(err, l.Close())
		}
		l.sides[i] = w
	}
	var err error
	if l.director, err = process.StartDirector(director, l.configuration(nil)); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	l.client = api.NewClient(l.director.Socket)
	if err := l.director.Runs(ctx); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	maps, err := inside.OpenMaps(l.director.Pin)
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	l.state = &state{l.director.Pin, maps}
	return l, nil
}

// Close ends the director.
func (l *Lab) Close() error {
	var errs []error
	for _, w := range l.sides {
		if w != nil {
			errs = append(errs, unix.Close(w.socket))
		}
	}
	if l.state != nil {
		errs = append(errs, l.state.maps.Close())
	}
	if l.director != nil {
		errs = append(errs, l.director.Stop())
	}
	return errors.Join(errs...)
}

func open(link *netlab.Link) (*wire, error) {
	w := &wire{name: link.A.Name, own: link.B.MAC, director: link.A.MAC, buffer: make([]byte, 16<<10), aside: make([]byte, 256)}
	const all = unix.ETH_P_ALL>>8 | unix.ETH_P_ALL<<8&0xff00
	err := link.B.Host.Do(func() (err error) {
		if w.socket, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, all); err != nil {
			return err
		}
		return errors.Join(unix.SetsockoptInt(w.socket, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1),
			unix.SetsockoptInt(w.socket, unix.SOL_PACKET, unix.PACKET_AUXDATA, 1),
			unix.SetsockoptInt(w.socket, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 4<<20),
			unix.Bind(w.socket, &unix.SockaddrLinklayer{Protocol: all, Ifindex: link.B.Index}))
	})
	if err != nil {
		return nil, fmt.Errorf("listen to frames on %s: %w", link.B.Host.Name, err)
	}
	return w, nil
}

func (w *wire) send(frame []byte) error {
	if _, err := unix.Write(w.socket, frame); err != nil {
		return fmt.Errorf("send a frame of %d bytes to %s: %w", len(frame), w.name, err)
	}
	return nil
}

// receive returns the next IP frame that has come, or nil. Other frames are the kernels' own: ARP.
func (w *wire) receive() ([]byte, error) {
	for {
		n, aside, _, _, err := unix.Recvmsg(w.socket, w.buffer, w.aside, 0)
		switch {
		case errors.Is(err, unix.EAGAIN):
			return nil, nil
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return nil, fmt.Errorf("receive from %s: %w", w.name, err)
		}
		frame := w.tagged(w.buffer[:n], w.aside[:aside])
		if n > 14 && (frame[12] != 0x08 || frame[13] != 0x06) {
			return frame, nil
		}
	}
}

// tagged is the frame as it was on the wire: the kernel removes the first tag and reports it beside
// the frame.
func (w *wire) tagged(frame, aside []byte) []byte {
	messages, err := unix.ParseSocketControlMessage(aside)
	if err != nil || len(frame) < 12 {
		return slices.Clone(frame)
	}
	for _, m := range messages {
		if m.Header.Level != unix.SOL_PACKET || m.Header.Type != unix.PACKET_AUXDATA || len(m.Data) < int(unsafe.Sizeof(unix.TpacketAuxdata{})) {
			continue
		}
		if about := (*unix.TpacketAuxdata)(unsafe.Pointer(&m.Data[0])); about.Status&unix.TP_STATUS_VLAN_VALID != 0 {
			tag := binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, about.Vlan_tpid), about.Vlan_tci)
			return slices.Concat(frame[:12], tag, frame[12:])
		}
	}
	return slices.Clone(frame)
}

// awaitFrame waits for the next frame.
func (w *wire) awaitFrame(ctx context.Context) (frame []byte, err error) {
	_, err = poll(ctx, func() (bool, error) {
		frame, err = w.receive()
		return frame != nil, err
	})
	return frame, err
}

// patience is how long a packet may take, on a machine that is busy with something else.
const patience = 2 * time.Second
