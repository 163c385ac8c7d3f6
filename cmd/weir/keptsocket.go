package main

import (
	"fmt"
	"net"
	"os"
	"sync"

	"weir.io/weir/internal/api"
	"weir.io/weir/internal/upkeep"
)

// partSocket is the name of the part that a keptSocket is.
const partSocket = "socket"

// keptSocket is the unix socket that a process answers on. Where somebody has removed it, or
// another process had it at the start, it is made again.
type keptSocket struct {
	path  string
	serve func(net.Listener) // begins to answer, and returns

	mu       sync.Mutex
	listener *net.UnixListener
	file     os.FileInfo // of the socket as it was made
}

// answer says how to answer. Before it is called, there is no socket and none is missed.
func (k *keptSocket) answer(serve func(net.Listener)) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.serve = serve
}

// open listens, and begins to answer.
func (k *keptSocket) open() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	listener, err := api.Listen(k.path)
	if err != nil {
		return err
	}
	file, err := os.Lstat(k.path)
	if err != nil {
		return fmt.Errorf("look at the socket: %w", err)
	}
	if k.listener != nil {
		// Nobody finds it any more, and its name is the new one's.
		k.listener.SetUnlinkOnClose(false)
		_ = k.listener.Close()
	}
	k.listener, k.file = listener.(*net.UnixListener), file
	k.serve(listener)
	return nil
}

// part is what has the socket made again.
func (k *keptSocket) part() upkeep.Part {
	return upkeep.Part{Name: partSocket, Look: func() ([]upkeep.Difference, error) {
		k.mu.Lock()
		defer k.mu.Unlock()
		if k.serve == nil {
			return nil, nil // not yet
		}
		d := upkeep.Difference{What: k.path, Found: "is not this process's", Repair: k.open}
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
	}}
}
