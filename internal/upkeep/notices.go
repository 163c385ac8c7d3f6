package upkeep

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
	"sync/atomic"
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
