package daemon

import (
	"context"
	"fmt"
	"net"
	"os"
	"sync"

	"weir.io/weir/internal/api"
	"weir.io/weir/internal/privilege"
	"weir.io/weir/internal/upkeep"
)

// Socket is the unix socket that a process answers on. It is made again if it was removed, or
// if another process had it at the start. Connected clients stay connected.
type Socket struct {
	path string
	ctx  context.Context // while it lasts the socket is made again

	mu       sync.Mutex
	serve    func(net.Listener) (wait func()) // nil: it does not answer yet
	listener net.Listener
	file     os.FileInfo // of the socket as it was made
	waits    []func()
}

// NewSocket returns a socket that does not answer yet, and is not made again when the context has
// ended.
func NewSocket(ctx context.Context, path string) *Socket { return &Socket{path: path, ctx: ctx} }

// Answer begins to answer on the listener. Without one, Open makes it.
func (k *Socket) Answer(listener net.Listener, serve func(net.Listener) (wait func())) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.serve = serve
	if listener == nil {
		return nil
	}
	return k.use(listener)
}

// Wait waits until no client is being answered.
func (k *Socket) Wait() {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, wait := range k.waits {
		wait()
	}
}

// Open listens, and begins to answer.
func (k *Socket) Open() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	listener, err := api.Listen(k.path)
	if err != nil {
		return privilege.NameOwner(err)
	}
	if old, is := k.listener.(*net.UnixListener); is {
		old.SetUnlinkOnClose(false) // the path is the new one's
		_ = old.Close()
	}
	return k.use(listener)
}

func (k *Socket) use(listener net.Listener) (err error) {
	if k.file, err = os.Lstat(k.path); err != nil {
		return fmt.Errorf("look at the socket: %w", err)
	}
	k.listener = listener
	k.waits = append(k.waits, k.serve(listener))
	return nil
}

// Part is the part of the host that makes the socket again.
func (k *Socket) Part() upkeep.Part { return upkeep.Part{Name: "socket", Look: k.look} }

func (k *Socket) look() ([]upkeep.Difference, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.serve == nil || k.ctx.Err() != nil { // a server that ends removes its socket
		return nil, nil
	}
	d := upkeep.Difference{What: k.path, Found: "is another process's", Repair: k.Open}
	file, err := os.Lstat(k.path)
	switch {
	case err == nil && k.file != nil && os.SameFile(file, k.file):
		return nil, nil
	case os.IsNotExist(err):
		d.Found = "is gone"
	case err != nil:
		return nil, fmt.Errorf("look at the socket: %w", err)
	}
	return []upkeep.Difference{d}, nil
}
