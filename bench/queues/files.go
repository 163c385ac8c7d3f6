package queues

import (
	"context"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"weir.io/weir/internal/model"
	"weir.io/weir/lab/netlab"
	"weir.io/weir/lab/process"
)

// NewFiles builds the lab with nginx as servers: each is a process with one file of that many
// bytes, behind a link of its own. A server's packets wait for the link, in order. A link carries a
// file's bytes, without any headers, in the service time.
func NewFiles(ctx context.Context, lab *netlab.Lab, servers, bytes int, service time.Duration) (*Lab, error) {
	l, err := build(lab, servers)
	if err != nil {
		return nil, err
	}
	rate := uint64(float64(8*bytes) / service.Seconds())
	for _, h := range append(l.groups, l.singles...) {
		if err := limit(ctx, h, l.cables[h], rate, l.sendersOn(h)); err != nil {
			return nil, err
		}
	}
	root := filepath.Join(l.balancer.Dir(), "files")
	if err := os.MkdirAll(root, 0o755); err != nil {
		return nil, fmt.Errorf("make the files' directory: %w", err)
	}
	if err := os.WriteFile(filepath.Join(root, "file"), make([]byte, bytes), 0o644); err != nil {
		return nil, fmt.Errorf("write the file: %w", err)
	}
	if err := l.serveFiles(ctx, root); err != nil {
		return nil, err
	}
	if err := l.learn(ctx, rate); err != nil {
		return nil, err
	}
	return l, l.start(ctx)
}

// sendersOn are the addresses from which a host's servers answer.
func (l *Lab) sendersOn(h *netlab.Host) []netip.Addr {
	var all []netip.Addr
	for i := range l.servers {
		if l.singles[i] == h {
			return []netip.Addr{vip}
		}
		if l.groupOf(i) == h {
			all = append(all, address(group+i))
		}
	}
	return all
}

// serveFiles starts an nginx for each server, of one worker with the client's priority, and returns
// when all of them listen.
func (l *Lab) serveFiles(ctx context.Context, root string) error {
	for i := range l.servers {
		for name, of := range map[string]func(*Way) bool{
			"dsr":      func(w *Way) bool { return w.mode == model.L2DSR },
			"redirect": func(w *Way) bool { return w.mode != model.L2DSR },
		} {
			var host *netlab.Host
			var at netip.AddrPort
			var listen strings.Builder
			for _, w := range Ways {
				if of(w) {
					var address netip.Addr
					host, address = l.place(w, i)
					at = netip.AddrPortFrom(address, w.port)
					fmt.Fprintf(&listen, "listen %v backlog=%d; ", at, waiting)
				}
			}
			text := fmt.Sprintf(`master_process off;
events { worker_connections 16384; }
http {
	access_log off; keepalive_timeout 0; sendfile on; tcp_nopush on; %s
	server { %s root %s; }
}`, process.NginxTemporary, &listen, root)
			if _, err := process.Nginx(ctx, host, fmt.Sprintf("%s%d", name, i+1), at, text, "chrt", "--fifo", "1"); err != nil {
				return err
			}
		}
	}
	return nil
}

// learn asks for a file, to learn how long the answer is, and how long its bytes take on the link.
func (l *Lab) learn(ctx context.Context, rate uint64) error {
	w := Ways[len(Ways)-1]
	_, server := l.place(w, 0)
	l.request = []byte("GET /file HTTP/1.0\r\n\r\n")
	before, err := l.cables[l.groupOf(0)].Sent(classOf(0))
	if err != nil {
		return err
	}
	answer, err := ask(ctx, l.balancer, netip.AddrPortFrom(server, w.port), l.request)
	if err != nil {
		return fmt.Errorf("ask a server for its file: %w", err)
	}
	if !strings.HasPrefix(answer, "HTTP/1.1 200 ") {
		status, _, _ := strings.Cut(answer, "\n")
		return fmt.Errorf("ask a server for its file: it answers %q", status)
	}
	after, err := l.cables[l.groupOf(0)].Sent(classOf(0))
	if err != nil {
		return err
	}
	l.answer = len(answer)
	l.service = time.Duration(float64(8*(after-before)) / float64(rate) * float64(time.Second))
	return nil
}

// ask returns a server's whole answer.
func ask(ctx context.Context, from *netlab.Host, to netip.AddrPort, request []byte) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	c, err := from.DialContext(ctx, "tcp", to.String())
	if err != nil {
		return "", err
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Now()) })()
	if _, err := c.Write(request); err != nil {
		return "", err
	}
	answer, err := io.ReadAll(c)
	return string(answer), err
}

// limit gives each of these addresses of a host a link of its own, in one direction: a class of the
// port's with that rate in bits per second, into which netfilter puts what the address sends. Other
// traffic is not limited.
func limit(ctx context.Context, h *netlab.Host, port *netlab.Port, rate uint64, senders []netip.Addr) error {
	const oneFrame = 1600 // may be sent at once
	class := func(rate uint64) netlab.Class {
		return netlab.Class{Rate: rate, Burst: max(oneFrame, uint32(rate/8/1000))}
	}
	classes := []netlab.Class{class(netlab.Unlimited)}
	rules := strings.Builder{}
	rules.WriteString("table ip links { chain out { type filter hook postrouting priority 0; meta priority set ip saddr map {")
	for i, sender := range senders {
		classes = append(classes, class(rate))
		fmt.Fprintf(&rules, " %v : 1:%x,", sender, classOf(i))
	}
	rules.WriteString(" }; }; }")
	if err := port.Shape(0, classes...); err != nil {
		return err
	}
	_, err := process.Run(ctx, h, "nft", rules.String())
	return err
}

// classOf is the class of a host's server: the first one is that of all other traffic.
func classOf(server int) int { return server + 2 }
