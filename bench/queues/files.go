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

	"github.com/vishvananda/netlink"

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
			return nil, fmt.Errorf("limit the links of %s: %w", h.Name, err)
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

// serveFiles starts an nginx for each server, and returns when all of them listen.
func (l *Lab) serveFiles(ctx context.Context, root string) error {
	type started struct {
		*process.Process
		host *netlab.Host
		at   netip.AddrPort
	}
	var all []started
	for i := range l.servers {
		for name, of := range map[string]func(*Way) bool{
			"dsr":      func(w *Way) bool { return w.mode == model.L2DSR },
			"redirect": func(w *Way) bool { return w.mode != model.L2DSR },
		} {
			s := started{}
			var listen strings.Builder
			for _, w := range Ways {
				if !of(w) {
					continue
				}
				var at netip.Addr
				s.host, at = l.place(w, i)
				s.at = netip.AddrPortFrom(at, w.port)
				fmt.Fprintf(&listen, "listen %v backlog=%d; ", s.at, waiting)
			}
			var err error
			if s.Process, err = startNginx(s.host, fmt.Sprintf("%s%d", name, i+1), listen.String(), root); err != nil {
				return err
			}
			all = append(all, s)
		}
	}
	for _, s := range all {
		if err := s.Await(ctx, "listen", func() error { return listens(ctx, s.host, s.at) }); err != nil {
			return err
		}
	}
	return nil
}

// startNginx starts an nginx with one worker, which has the same priority as the client.
func startNginx(h *netlab.Host, name, listen, root string) (*process.Process, error) {
	conf := filepath.Join(h.Dir(), name+".conf")
	text := fmt.Sprintf(`
daemon off; master_process off; user root; pid DIR/%[1]s.pid; error_log DIR/%[1]s.err;
events { worker_connections 16384; }
http {
	access_log off; keepalive_timeout 0; sendfile on; tcp_nopush on;
	client_body_temp_path DIR; proxy_temp_path DIR; fastcgi_temp_path DIR; uwsgi_temp_path DIR; scgi_temp_path DIR;
	server { %[2]s root %[3]s; }
}
`, name, listen, root)
	if err := os.WriteFile(conf, []byte(strings.ReplaceAll(text, "DIR", h.Dir())), 0o644); err != nil {
		return nil, fmt.Errorf("configuration of %s: %w", name, err)
	}
	return process.Start(h, "nginx-"+name, "chrt", "--fifo", "1", "nginx", "-e", "stderr", "-c", conf)
}

func listens(ctx context.Context, h *netlab.Host, at netip.AddrPort) error {
	c, err := h.DialContext(ctx, "tcp", at.String())
	if err != nil {
		return err
	}
	return c.Close()
}

// learn asks for a file, to learn how long the answer is, and how long its bytes take on the link.
func (l *Lab) learn(ctx context.Context, rate uint64) error {
	w, h := Ways[len(Ways)-1], l.groupOf(0)
	_, server := l.place(w, 0)
	l.request = []byte("GET /file HTTP/1.0\r\n\r\n")
	before, err := sentOn(h, l.cables[h], 0)
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
	after, err := sentOn(h, l.cables[h], 0)
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
	if deadline, is := ctx.Deadline(); is {
		if err := c.SetDeadline(deadline); err != nil {
			return "", err
		}
	}
	if _, err := c.Write(request); err != nil {
		return "", err
	}
	answer, err := io.ReadAll(c)
	return string(answer), err
}

// Classes of a port: each server has one; other traffic is not limited.
const (
	freeClass   = 1
	firstServer = 2
	unlimited   = 10_000_000_000 // bits per second
)

// leastBurst is one frame, which may be sent at once.
const leastBurst = 1600

// limit gives each of these addresses of a host a link of its own, in one direction: a class of
// the port's with that rate in bits per second, into which netfilter puts what the address sends.
func limit(ctx context.Context, h *netlab.Host, port *netlab.Port, rate uint64, senders []netip.Addr) error {
	if err := h.Do(func() error { return classes(port.Index, rate, len(senders)) }); err != nil {
		return err
	}
	rules := strings.Builder{}
	rules.WriteString("table ip links { chain out { type filter hook postrouting priority 0; meta priority set ip saddr map {")
	for i, sender := range senders {
		fmt.Fprintf(&rules, " %v : 1:%x,", sender, firstServer+i)
	}
	rules.WriteString(" }; }; }\n")
	conf := filepath.Join(h.Dir(), "links.nft")
	if err := os.WriteFile(conf, []byte(rules.String()), 0o644); err != nil {
		return fmt.Errorf("write the rules: %w", err)
	}
	_, err := process.Run(ctx, h, "nft", "-f", conf)
	return err
}

func classes(index int, rate uint64, servers int) error {
	root := netlink.MakeHandle(1, 0)
	htb := netlink.NewHtb(netlink.QdiscAttrs{LinkIndex: index, Handle: root, Parent: netlink.HANDLE_ROOT})
	htb.Defcls = freeClass
	if err := netlink.QdiscAdd(htb); err != nil {
		return fmt.Errorf("add HTB: %w", err)
	}
	for class := range uint16(firstServer + servers) {
		rate := rate
		if class == 0 {
			continue
		}
		if class == freeClass {
			rate = unlimited
		}
		burst := max(leastBurst, uint32(rate/8/1000))
		at := netlink.ClassAttrs{LinkIndex: index, Handle: netlink.MakeHandle(1, class), Parent: root}
		if err := netlink.ClassAdd(netlink.NewHtbClass(at, netlink.HtbClassAttrs{Rate: rate, Ceil: rate, Buffer: burst, Cbuffer: burst})); err != nil {
			return fmt.Errorf("add class %d: %w", class, err)
		}
	}
	return nil
}

// sentOn is how many bytes one of a host's servers has put on its link, with Ethernet's header.
func sentOn(h *netlab.Host, port *netlab.Port, server int) (sent uint64, err error) {
	err = h.Do(func() error {
		link, err := netlink.LinkByIndex(port.Index)
		if err != nil {
			return err
		}
		all, err := netlink.ClassList(link, netlink.MakeHandle(1, 0))
		if err != nil {
			return err
		}
		handle := netlink.MakeHandle(1, uint16(firstServer+server))
		for _, class := range all {
			if a := class.Attrs(); a.Handle == handle && a.Statistics != nil {
				sent = a.Statistics.Basic.Bytes
				return nil
			}
		}
		return fmt.Errorf("there is no class %s", netlink.HandleStr(handle))
	})
	if err != nil {
		return 0, fmt.Errorf("read the counters of a link of %s: %w", h.Name, err)
	}
	return sent, nil
}
