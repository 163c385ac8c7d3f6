package edge

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"strconv"
	"sync/atomic"

	"weir.io/weir/lab/netlab"
	"weir.io/weir/lab/process"
)

// Backend is a server. It answers every connection with its name, counts what else comes on it, and
// notes which director its beginning came from.
type Backend struct {
	Name   string
	Active bool // directors must send it new connections

	drains bool // it is no longer active, but keeps its connections

	agent   *process.Weir
	host    *netlab.Host
	port    *netlab.Port
	address netip.Addr
	got     atomic.Uint64 // bytes of all connections
}

func (e *Edge) addBackend(i int) error {
	b := &Backend{Name: "backend" + strconv.Itoa(i+1), Active: true, address: address(backendNumber + i)}
	b.host = e.lab.Host(b.Name)
	link, err := e.plugIn(b.host, backendNumber+i)
	if err != nil {
		return err
	}
	b.port = link.A
	e.Backends = append(e.Backends, b)
	e.seen.stations[macOf(b.port.MAC)] = station{name: b.Name, backend: b}
	return b.serve()
}

// Write counts what a client sends.
func (b *Backend) Write(text []byte) (int, error) {
	b.got.Add(uint64(len(text)))
	return len(text), nil
}

// serve answers connections until the lab is closed.
func (b *Backend) serve() error {
	var listener net.Listener
	err := b.host.Do(func() (err error) {
		listener, err = net.Listen("tcp4", ":"+strconv.Itoa(port))
		return err
	})
	if err != nil {
		return fmt.Errorf("serve on %s: %w", b.Name, err)
	}
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				if _, err := io.WriteString(conn, b.Name); err != nil || conn.(*net.TCPConn).CloseWrite() != nil {
					return
				}
				_, _ = io.Copy(b, conn)
			}()
		}
	}()
	return nil
}
