package test

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"weir.io/weir/lab/netlab"
)

// guest is a virtual machine as its host sees it: frames on a tap with the header of virtio
// (linux/virtio_net.h), by which each side leaves checksums and segmentation to the other. It has
// this kernel, in a namespace of its own, with a tap as its card; the test relays between the two
// as a hypervisor does.
type guest struct {
	*netlab.Host
	partial, super atomic.Uint64 // frames from the guest: with unfinished checksums, unsegmented
	given          atomic.Uint64 // unsegmented frames from the host's side
}

// The header of virtio, and the fields that the test reads.
const (
	virtioHeader       = 10
	virtioFlags        = 0
	virtioSegmentation = 1
	needsChecksum      = 1 // VIRTIO_NET_HDR_F_NEEDS_CSUM
)

const tapName = "tap0"

// newGuest starts a guest whose cable is a host's tap0.
func (l *lab) newGuest(t *testing.T, name string, host *netlab.Host) *guest {
	t.Helper()
	g := &guest{Host: l.Host(name)}
	card, tap := openTap(t, g.Host, "eth0"), openTap(t, host, tapName)
	go relay(card, tap, func(frame []byte) {
		if frame[virtioFlags]&needsChecksum != 0 {
			g.partial.Add(1)
		}
		if frame[virtioSegmentation] != 0 {
			g.super.Add(1)
		}
	})
	go relay(tap, card, func(frame []byte) {
		if frame[virtioSegmentation] != 0 {
			g.given.Add(1)
		}
	})
	return g
}

// openTap makes a tap whose other end has the offloads of a virtio card.
func openTap(t *testing.T, h *netlab.Host, name string) *os.File {
	t.Helper()
	const takes = unix.TUN_F_CSUM | unix.TUN_F_TSO4 | unix.TUN_F_TSO6 | unix.TUN_F_TSO_ECN
	var tap *os.File
	err := h.Do(func() error {
		fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		request, err := unix.NewIfreq(name)
		if err != nil {
			return err
		}
		request.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR)
		err = unix.IoctlIfreq(fd, unix.TUNSETIFF, request)
		if err == nil {
			err = unix.IoctlSetInt(fd, unix.TUNSETOFFLOAD, takes)
		}
		if err != nil {
			return errors.Join(err, unix.Close(fd))
		}
		tap = os.NewFile(uintptr(fd), name)
		return nil
	})
	if err != nil {
		t.Fatalf("make tap %s on %s: %v", name, h.Name, err)
	}
	t.Cleanup(func() { _ = tap.Close() })
	// The queue has room for what a test sends at once: a tap's default is 500 frames.
	on(t, h, "ip", "link", "set", name, "txqueuelen", "10000", "up")
	return tap
}

// relay passes frames on until one of the taps is closed. A tap without room drops the frame.
func relay(from, to *os.File, see func(frame []byte)) {
	frame := make([]byte, virtioHeader+1<<17)
	for {
		n, err := from.Read(frame)
		if errors.Is(err, os.ErrClosed) {
			return
		}
		if err != nil || n <= virtioHeader {
			continue
		}
		see(frame[:n])
		if _, err := to.Write(frame[:n]); errors.Is(err, os.ErrClosed) {
			return
		}
	}
}

// badChecksums is how many TCP packets a host's kernel has refused for their checksums.
func badChecksums(t *testing.T, h *netlab.Host) (n int) {
	t.Helper()
	if _, err := fmt.Sscanf(on(t, h, "nstat", "--ignore", "--noupdate", "--zeros", "TcpInCsumErrors"), "#kernel\nTcpInCsumErrors %d", &n); err != nil {
		t.Fatalf("read the counters of %s: %v", h.Name, err)
	}
	return n
}
