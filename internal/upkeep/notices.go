package upkeep

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// The bounds that keep lost notices rare. A lost notice costs only time: a look follows.
const (
	receiveBuffer = 1 << 20
	rememberOwner = 5 * time.Second
	mostChanges   = 1024
)

// Notices say when the host may have changed, and which process has changed it, as far as the
// kernel tells. They are of the network namespace of the thread that calls Listen.
type Notices struct {
	netlink *nl.NetlinkSocket
	files   *os.File // inotify
	c       chan struct{}
	closed  atomic.Bool
	hearing sync.WaitGroup

	mu      sync.Mutex
	changes []Change // of others, the newest last
}

// Listen begins to listen to groups of rtnetlink (unix.RTNLGRP_...), all below 33.
func Listen(groups ...uint) (*Notices, error) {
	socket, err := nl.Subscribe(unix.NETLINK_ROUTE, groups...)
	if err != nil {
		return nil, fmt.Errorf("listen to the kernel: %w", err)
	}
	// Without the right to force it, as in some containers, the usual size must do.
	if socket.SetReceiveBufferSize(receiveBuffer, true) != nil {
		_ = socket.SetReceiveBufferSize(receiveBuffer, false)
	}
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		socket.Close()
		return nil, fmt.Errorf("watch files: %w", err)
	}
	n := &Notices{netlink: socket, files: os.NewFile(uintptr(fd), "inotify"), c: make(chan struct{}, 1)}
	n.hearing.Go(n.hearKernel)
	n.hearing.Go(n.hearFiles)
	return n, nil
}

// Close ends it. C is silent from then on.
func (n *Notices) Close() {
	n.closed.Store(true)
	n.netlink.Close()
	_ = n.files.Close()
}

// C has one when something may have changed since it was last read.
func (n *Notices) C() <-chan struct{} { return n.c }

// Files makes changes of these files, and of directories' entries, notices, too. A file that is
// replaced has to be named again; naming it twice does no harm.
func (n *Notices) Files(paths ...string) error {
	const changes = unix.IN_MODIFY | unix.IN_CREATE | unix.IN_DELETE | unix.IN_DELETE_SELF | unix.IN_MOVE | unix.IN_MOVE_SELF | unix.IN_UNMOUNT
	raw, err := n.files.SyscallConn()
	if err != nil {
		return fmt.Errorf("watch files: %w", err)
	}
	var errs []error
	controlled := raw.Control(func(fd uintptr) {
		for _, path := range paths {
			if _, err := unix.InotifyAddWatch(int(fd), path, changes); err != nil && !errors.Is(err, fs.ErrNotExist) {
				errs = append(errs, fmt.Errorf("watch %s: %w", path, err))
			}
		}
	})
	return errors.Join(append(errs, controlled)...)
}

// Hearing has the notices as soon as the kernel gives them: a user may have no more inotify instances, or
// the process no more files. Until then the regular looks must do.
type Hearing struct {
	listen func() (*Notices, error)

	mu      sync.Mutex
	notices *Notices // nil: there are none yet
	deaf    error    // why
	closed  bool
}

// Hear returns a Hearing that begins to listen, by a function, when C is called first.
func Hear(listen func() (*Notices, error)) *Hearing { return &Hearing{listen: listen} }

// C has one when something may have changed since it was last read. While there are no notices it is
// nil, and each call tries again to listen.
func (h *Hearing) C() <-chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.notices == nil && !h.closed {
		h.notices, h.deaf = h.listen()
	}
	if h.notices == nil {
		return nil
	}
	return h.notices.C()
}

// Problem says why there are no notices, or returns nil.
func (h *Hearing) Problem() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.deaf
}

// Close ends it for good.
func (h *Hearing) Close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed = true; h.notices != nil {
		h.notices.Close()
	}
}

// Files makes changes of these files notices, too, if there are any: see Notices.Files.
func (h *Hearing) Files(paths ...string) error {
	if n := h.now(); n != nil {
		return n.Files(paths...)
	}
	return nil
}

// By names the process that made the newest matching change: see Notices.By.
func (h *Hearing) By(matches func(Change) bool) string {
	if n := h.now(); n != nil {
		return n.By(matches)
	}
	return ""
}

func (h *Hearing) now() *Notices {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.notices
}

// By says which process made a change of the host that matches, or nothing: Notices.By. Nil knows of
// none.
type By func(matches func(Change) bool) string

// OfLink finds the process that changed an interface or its attached programs.
func (by By) OfLink(index int) string {
	if by == nil {
		return ""
	}
	return by(func(c Change) bool { return c.Index == index })
}

// By names the process that made the newest matching change, as far as it is known.
func (n *Notices) By(matches func(Change) bool) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	for i := len(n.changes) - 1; i >= 0; i-- {
		c := &n.changes[i]
		if time.Since(c.at) > rememberOwner {
			break
		}
		if matches(*c) {
			return c.by
		}
	}
	return ""
}

func (n *Notices) hearKernel() {
	for {
		messages, _, err := n.netlink.Receive()
		// What Receive returns then is no os.ErrClosed: it comes from below package os.
		if err != nil && n.closed.Load() {
			return
		}
		// Other errors concern one message, or say that some were lost (ENOBUFS).
		n.note(messages)
		select {
		case n.c <- struct{}{}:
		default:
		}
	}
}

func (n *Notices) hearFiles() {
	buffer := make([]byte, 64*(unix.SizeofInotifyEvent+unix.NAME_MAX+1))
	for {
		if _, err := n.files.Read(buffer); errors.Is(err, os.ErrClosed) {
			return
		}
		select {
		case n.c <- struct{}{}:
		default:
		}
	}
}

// mostPID is the largest number of a process (PID_MAX_LIMIT in linux/threads.h). A netlink
// socket has its process's number if it is that process's first, or one far above.
const mostPID = 1 << 22

// Change is what the kernel has told about something that another process has done.
type Change struct {
	Type    uint16     // unix.RTM_DELADDR, ...
	Index   int        // of the interface; 0: the message names none, or it is not read
	Address netip.Addr // of RTM_NEWADDR and RTM_DELADDR; the destination of routes; of neighbors
	by      string
	at      time.Time
}

// note remembers which processes have made changes. Changes by the kernel itself, and by this
// process, are left out.
func (n *Notices) note(messages []syscall.NetlinkMessage) {
	own := uint32(os.Getpid())
	var changes []Change
	for i := range messages {
		m := &messages[i]
		if pid := m.Header.Pid; pid == 0 || pid == own || pid > mostPID {
			continue
		}
		c := Change{Type: m.Header.Type, by: processName(m.Header.Pid), at: time.Now()}
		c.read(m.Data)
		changes = append(changes, c)
	}
	if changes == nil {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.changes = append(n.changes, changes...)
	if more := len(n.changes) - mostChanges; more > 0 {
		n.changes = slices.Delete(n.changes, 0, more)
	}
}

// read reads what the message is about (linux/rtnetlink.h).
func (c *Change) read(data []byte) {
	switch c.Type {
	case unix.RTM_NEWADDR, unix.RTM_DELADDR:
		if len(data) >= unix.SizeofIfAddrmsg {
			c.Index = int(nl.DeserializeIfAddrmsg(data).Index)
			c.Address = attribute(data[unix.SizeofIfAddrmsg:], unix.IFA_ADDRESS)
		}
	case unix.RTM_NEWLINK, unix.RTM_DELLINK:
		if len(data) >= unix.SizeofIfInfomsg {
			c.Index = int(nl.DeserializeIfInfomsg(data).Index)
		}
	case unix.RTM_NEWROUTE, unix.RTM_DELROUTE:
		if len(data) >= unix.SizeofRtMsg {
			c.Address = attribute(data[unix.SizeofRtMsg:], unix.RTA_DST)
		}
	case unix.RTM_NEWNEIGH, unix.RTM_DELNEIGH:
		// struct ndmsg: family, padding, then the interface's index at 4.
		if len(data) >= unix.SizeofNdMsg {
			c.Index = int(nl.NativeEndian().Uint32(data[4:]))
			c.Address = attribute(data[unix.SizeofNdMsg:], unix.NDA_DST)
		}
	case unix.RTM_NEWQDISC, unix.RTM_DELQDISC, unix.RTM_NEWTFILTER, unix.RTM_DELTFILTER:
		// struct tcmsg: family, padding, then the interface's index at 4.
		if len(data) >= nl.SizeofTcMsg {
			c.Index = int(nl.NativeEndian().Uint32(data[4:]))
		}
	}
}

// attribute returns an address among a message's attributes.
func attribute(data []byte, kind uint16) (address netip.Addr) {
	attributes, err := nl.ParseRouteAttr(data)
	if err != nil {
		return address
	}
	for _, a := range attributes {
		if a.Attr.Type == kind {
			address, _ = netip.AddrFromSlice(a.Value)
		}
	}
	return address
}

// processName names a process for people. Commands like ip have usually ended by now.
func processName(pid uint32) string {
	name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	if err != nil {
		return fmt.Sprintf("process %d, which has ended", pid)
	}
	return fmt.Sprintf("process %d (%s)", pid, bytes.TrimSpace(name))
}
