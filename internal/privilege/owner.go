package privilege

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os/user"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// NameOwner adds to an error about a file or a socket which other user it belongs to. [Keep] drops the
// right of root to use what others own, and after the package is installed weir's directories belong to
// user weir: root that starts a process by hand would read "permission denied" and nothing else.
func NameOwner(err error) error {
	if !errors.Is(err, fs.ErrPermission) {
		return err
	}
	var path string
	var file *fs.PathError
	var socket *net.OpError
	switch {
	case errors.As(err, &file):
		path = file.Path
	case errors.As(err, &socket) && socket.Addr != nil && socket.Addr.Network() == "unix":
		path = socket.Addr.String()
	}
	for ; filepath.IsAbs(path); path = filepath.Dir(path) {
		var status unix.Stat_t
		if unix.Stat(path, &status) != nil { // it is not there, or in a directory that is closed
			if path == "/" {
				break
			}
			continue
		}
		if status.Uid == uint32(unix.Geteuid()) {
			break
		}
		name := strconv.Itoa(int(status.Uid))
		if owner, err := user.LookupId(name); err == nil {
			name = owner.Username
		}
		return fmt.Errorf("%w; %s belongs to user %s, and this process may not use it, even as root: run it as that user, as weir's units do (systemctl start)", err, path, name)
	}
	return err
}
