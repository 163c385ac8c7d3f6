package config

import (
	"encoding/binary"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// The events of a directory when a file in it gets new contents: it was written, another one took
// its name, or a link to it was made; or when the file goes. The beginning of a write is left out:
// the file is incomplete then.
const watched = unix.IN_CLOSE_WRITE | unix.IN_MOVED_TO | unix.IN_CREATE |
	unix.IN_DELETE | unix.IN_MOVED_FROM | unix.IN_MOVE_SELF | unix.IN_ONLYDIR

// The directory was removed or unmounted, or it has another name: another one may have its name.
const lost = unix.IN_IGNORED | unix.IN_MOVE_SELF

// eventHeader is the length of struct inotify_event (linux/inotify.h) without
// the name that follows it.
const eventHeader = 16

// directory tells of changes in one directory through inotify. The directory is lost when its events
// end.
type directory struct {
	file   *os.File
	events chan struct{}
	done   chan struct{}
}

func watchDirectory(path string) (*directory, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("start inotify: %w", err)
	}
	if _, err := unix.InotifyAddWatch(fd, path, watched); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("watch %s: %w", path, err)
	}
	d := &directory{
		file:   os.NewFile(uintptr(fd), "inotify"), // non-blocking, so that close ends a read
		events: make(chan struct{}),
		done:   make(chan struct{}),
	}
	go d.read()
	return d, nil
}

func (d *directory) close() {
	close(d.done)
	d.file.Close()
}

func (d *directory) read() {
	defer close(d.events)
	buf := make([]byte, 64<<10)
	for {
		n, err := d.file.Read(buf)
		if err != nil || isLost(buf[:n]) {
			return
		}
		select {
		case d.events <- struct{}{}:
		case <-d.done:
			return
		}
	}
}

// isLost says whether one of these inotify events is the directory's last.
func isLost(events []byte) bool {
	for at := 0; at+eventHeader <= len(events); {
		if binary.NativeEndian.Uint32(events[at+4:])&lost != 0 {
			return true
		}
		at += eventHeader + int(binary.NativeEndian.Uint32(events[at+12:]))
	}
	return false
}
