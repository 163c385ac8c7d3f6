package datapath

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weir.io/weir/internal/device"
)

// Watch observes a director's datapath from a process other than the one that made it.
type Watch struct {
	pin     string
	fd      int      // a socket, for asking about interfaces
	inotify *os.File // of the pin directory
	changed chan struct{}
	done    chan struct{}
}

// NewWatch makes a watch of the director with that pin directory, whether or not there is one.
func NewWatch(pin string) (*Watch, error) {
	w := &Watch{pin: pin, changed: make(chan struct{}, 1), done: make(chan struct{})}
	var err error
	if w.fd, err = unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0); err != nil {
		return nil, fmt.Errorf("open a socket to ask about interfaces: %w", err)
	}
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("watch directories: %w", err), unix.Close(w.fd))
	}
	w.inotify = os.NewFile(uintptr(fd), "inotify")
	links := make(chan netlink.LinkUpdate, 64)
	if err := netlink.LinkSubscribe(links, w.done); err != nil {
		return nil, errors.Join(fmt.Errorf("watch interfaces: %w", err), w.inotify.Close(), unix.Close(w.fd))
	}
	go func() {
		for range links {
			w.notify()
		}
	}()
	go w.readPins()
	return w, nil
}

// Close ends the watch.
func (w *Watch) Close() error {
	close(w.done)
	return errors.Join(w.inotify.Close(), unix.Close(w.fd))
}

// Changed returns a channel that has an element when something may have changed: an interface, or a
// pin. It does not tell when a program is taken off an interface: to know that, ask from time to
// time.
func (w *Watch) Changed() <-chan struct{} { return w.changed }

func (w *Watch) notify() {
	select {
	case w.changed <- struct{}{}:
	default:
	}
}

// readPins waits for changes of the pin directory.
func (w *Watch) readPins() {
	events := make([]byte, 4096)
	for {
		if _, err := w.inotify.Read(events); err != nil {
			return // closed
		}
		w.notify()
	}
}

// Interface says whether packets can come in by an interface, and whether the director's program is
// attached to it. If that cannot be found out, it says no. It waits for the kernel's lock of all
// network configuration.
func (w *Watch) Interface(name string) (up, attached bool) {
	// The directory may have been made anew; otherwise this changes nothing.
	const pins = unix.IN_CREATE | unix.IN_DELETE | unix.IN_MOVE | unix.IN_ONLYDIR
	_ = w.inAdd(pins)
	index := w.attachedIndex(name)
	if index != 0 {
		name = w.nameOf(index, name) // it may have been renamed
	}
	return w.up(name), index != 0
}

// nameOf is the name that an interface has now.
func (w *Watch) nameOf(index int, name string) string {
	request, err := unix.NewIfreq(name)
	if err != nil {
		return name
	}
	request.SetUint32(uint32(index))
	if unix.IoctlIfreq(w.fd, unix.SIOCGIFNAME, request) != nil {
		return name
	}
	return request.Name()
}

func (w *Watch) inAdd(mask uint32) (err error) {
	conn, err := w.inotify.SyscallConn()
	if err != nil {
		return err
	}
	control := conn.Control(func(fd uintptr) { _, err = unix.InotifyAddWatch(int(fd), w.pin, mask) })
	return errors.Join(control, err)
}

func (w *Watch) up(name string) bool {
	request, err := unix.NewIfreq(name)
	if err != nil || unix.IoctlIfreq(w.fd, unix.SIOCGIFFLAGS, request) != nil {
		return false
	}
	const ready = unix.IFF_UP | unix.IFF_RUNNING
	return request.Uint16()&ready == ready
}

// attachedIndex opens the link anew each time: a link that is held open keeps the program attached.
// 0: it is on no interface.
func (w *Watch) attachedIndex(name string) int {
	// A link has no interface any more after it was detached, or after its interface is gone, even
	// if another interface has that name by now.
	index, err := pinnedIndex(filepath.Join(w.pin, linkPrefix+device.PinName(name)))
	if err != nil {
		return 0
	}
	return index
}
