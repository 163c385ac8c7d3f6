package traffic

import (
	"net"

	"golang.org/x/sys/unix"
)

// remains is the end of a TCP connection at a backend. When the client has given up a broken
// connection, it goes, too: a rival breaks more connections than there may be descriptors.
type remains struct {
	conn *net.TCPConn
	id   uint64 // of the connection; 0: not known yet
}

// vanish closes the connection without a packet: its client's port may already have another
// connection.
func (r *remains) vanish() {
	if raw, err := r.conn.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) {
			_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_REPAIR, 1)
		})
	}
	_ = r.conn.Close()
}

// entered notes a backend's end of a connection.
func (t *Tracker) entered(id uint64, r *remains) {
	t.mu.Lock()
	defer t.mu.Unlock()
	r.id = id
	t.served[id] = r
}

// left notes that the backend's end is gone.
func (t *Tracker) left(r *remains) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.served[r.id] == r {
		delete(t.served, r.id)
	}
}
