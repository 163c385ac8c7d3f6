package main

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"

	"weir.io/weir/lab/process"
	"weir.io/weir/test/chaos/traffic"
)

// ways asks the router by which director a connection's packets go, right after it broke or a
// packet went astray: for the answer the kernel chooses by addresses and ports, as for packets.
type ways struct {
	top   *topology
	asked chan traffic.Connection

	mu        sync.Mutex
	directors map[uint64]string // by the connection's number
}

// mostAsked bounds how many questions wait: a rival breaks a thousand connections at once, and each
// question takes a process.
const mostAsked = 64

func newWays(top *topology) *ways {
	return &ways{top: top, asked: make(chan traffic.Connection, mostAsked), directors: map[uint64]string{}}
}

// broke is called with every connection that breaks, and does not wait.
func (w *ways) broke(b traffic.Break) {
	if !b.Excused {
		w.about(b.Connection)
	}
}

// astray is called with every packet that is misdirected, and does not wait.
func (w *ways) astray(s traffic.Stray) {
	if s.Client.IsValid() {
		w.about(s.Connection)
	}
}

func (w *ways) about(c traffic.Connection) {
	select {
	case w.asked <- c:
	default: // its report has no director
	}
}

// follow asks the questions until the context ends.
func (w *ways) follow(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case c := <-w.asked:
			director, err := w.ask(ctx, c)
			if err != nil {
				continue // its report has no director
			}
			w.mu.Lock()
			w.directors[c.ID] = director
			w.mu.Unlock()
		}
	}
}

func (w *ways) ask(ctx context.Context, c traffic.Connection) (string, error) {
	out, err := process.Run(ctx, w.top.router, "ip", "-json", "route", "get", vip, "from", c.Client.Addr().String(), "iif", "eth0",
		"ipproto", fmt.Sprint(protocols[c.Protocol]), "sport", fmt.Sprint(c.Client.Port()), "dport", fmt.Sprint(servicePort(c.Protocol)))
	if err != nil {
		return "", err
	}
	var routes []struct{ Gateway string }
	if err := json.Unmarshal([]byte(out), &routes); err != nil || len(routes) != 1 {
		return "", fmt.Errorf("read route %q: %w", out, err)
	}
	i := slices.IndexFunc(w.top.directors, func(d *directorHost) bool { return d.address == routes[0].Gateway })
	if i < 0 {
		return "", fmt.Errorf("%s is no director's", routes[0].Gateway)
	}
	return w.top.directors[i].Name, nil
}

// of returns the director of a connection's packets at the time of the question; empty: not known.
func (w *ways) of(id uint64) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.directors[id]
}
