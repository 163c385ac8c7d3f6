package config

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// The events of a directory when a file in it gets new contents: it was written, another one took
// its name, or a link to it was made; or when the file goes. The beginning of a write is left out:
// the file is incomplete then.
const watched = unix.IN_CLOSE_WRITE | unix.IN_MOVED_TO | unix.IN_CREATE |
	unix.IN_DELETE | unix.IN_MOVED_FROM | unix.IN_MOVE_SELF | unix.IN_ONLYDIR

// eventHeader is the length of struct inotify_event (linux/inotify.h) without
// the name that follows it.
const eventHeader = 16

type directoryEvent int

const (
	directoryChanged directoryEvent = iota
	directoryLost                   // it was removed, renamed or unmounted
)

// directory tells of changes in one directory through inotify.
type directory struct {
	path   string
	file   *os.File
	events chan directoryEvent
	done   chan struct{}
}

// watchDirectory watches the directory of the file.
func watchDirectory(file string) (*directory, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("start inotify: %w", err)
	}
	d := &directory{
		path:   filepath.Dir(file),
		file:   os.NewFile(uintptr(fd), "inotify"), // non-blocking, so that close ends a read
		events: make(chan directoryEvent),
		done:   make(chan struct{}),
	}
	if err := d.watch(); err != nil {
		d.file.Close()
		return nil, err
	}
	go d.read()
	return d, nil
}

// watch adds the directory, also again after it was lost.
func (d *directory) watch() error {
	conn, err := d.file.SyscallConn()
	if err != nil {
		return fmt.Errorf("watch %s: %w", d.path, err)
	}
	var addErr error
	err = conn.Control(func(fd uintptr) {
		_, addErr = unix.InotifyAddWatch(int(fd), d.path, watched)
	})
	if err == nil {
		err = addErr
	}
	if err != nil {
		return fmt.Errorf("watch %s: %w", d.path, err)
	}
	return nil
}

func (d *directory) close() {
	close(d.done)
	d.file.Close()
}

func (d *directory) read() {
	buf := make([]byte, 64<<10)
	for {
		n, err := d.file.Read(buf)
		if err != nil {
			return // closed
		}
		event := directoryChanged
		for at := 0; at+eventHeader <= n; {
			watch, mask := binary.NativeEndian.Uint32(buf[at:]), binary.NativeEndian.Uint32(buf[at+4:])
			if mask&unix.IN_MOVE_SELF != 0 {
				d.drop(int(watch)) // another directory may have its name by now
			}
			if mask&unix.IN_IGNORED != 0 {
				event = directoryLost
			}
			at += eventHeader + int(binary.NativeEndian.Uint32(buf[at+12:]))
		}
		select {
		case d.events <- event:
		case <-d.done:
			return
		}
	}
}

// drop ends a watch; the kernel confirms with IN_IGNORED.
func (d *directory) drop(watch int) {
	if conn, err := d.file.SyscallConn(); err == nil {
		_ = conn.Control(func(fd uintptr) { _, _ = unix.InotifyRmWatch(int(fd), uint32(watch)) })
	}
}
