package test

import (
	"bufio"
	"cmp"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"weir.io/weir/internal/api"
	"weir.io/weir/lab/netlab"
)

// redirectLab is a lab whose connections bypass the director:
//
//	client --- router --- switch --- director
//	                        |    --- backend1 ... backend3
//	                    neighbor
//
// Client and neighbor have agents, the router has none.
type redirectLab struct {
	*lab
	neighbor *netlab.Host
	daemon   *daemon            // the director's
	agents   map[string]*daemon // by host
}

// redirectService is one service of the lab, in both families.
type redirectService struct {
	number   int // of its VIPs
	port     int // of the VIP
	to       int // of the backends; 0: the same
	fallback string
	policy   string // "": the default
	health   string // "": backends are not checked
	callers  []int  // the only hosts of the client's network that may call; none: all may
	backends []backend
}

func redirectVIP(number int, six bool) netip.Addr {
	if six {
		return netip.MustParseAddr(fmt.Sprintf("2001:db8::2:%d", number))
	}
	return netip.AddrFrom4([4]byte{192, 0, 2, byte(100 + number)})
}

func (s redirectService) text() string {
	var b strings.Builder
	for _, six := range []bool{false, true} {
		fmt.Fprintf(&b, "- name: redirect%d-%v\n  vip: %s\n  protocol: tcp\n  port: %d\n  mode: redirect\n  fallback: %s\n", s.number, six, redirectVIP(s.number, six), s.port, s.fallback)
		if s.policy != "" {
			fmt.Fprintf(&b, "  policy: %s\n", s.policy)
		}
		if s.health != "" {
			fmt.Fprintf(&b, "  health: %s\n", s.health)
		}
		for i, host := range s.callers {
			fmt.Fprintf(&b, "%s\"%s\"", map[bool]string{true: "  source-ranges: [", false: ", "}[i == 0], clientAddress(host, six))
		}
		if len(s.callers) > 0 {
			b.WriteString("]\n")
		}
		b.WriteString("  backends:\n")
		for _, one := range s.backends {
			fmt.Fprintf(&b, "  - {name: backend%d, address: \"%s\"", one.number, lanAddress(backendHost+one.number-1, six))
			if s.to > 0 {
				fmt.Fprintf(&b, ", port: %d", s.to)
			}
			b.WriteString("}\n")
		}
	}
	return b.String()
}

const neighborHost = 41

func newRedirectLab(t *testing.T, services ...redirectService) *redirectLab {
	t.Helper()
	return newNarrowLab(t, size{backends: 3}, services...)
}

// newNarrowLab is newRedirectLab with links of other sizes.
func newNarrowLab(t *testing.T, s size, services ...redirectService) *redirectLab {
	t.Helper()
	l := &redirectLab{lab: newLab(t, s), agents: map[string]*daemon{}}
	l.neighbor = l.Host("neighbor")
	l.Link(l.neighbor, l.lan, netlab.LinkOptions{XDP: true, A: lanPrefixes(neighborHost)})
	for _, six := range []bool{false, true} {
		l.neighbor.Route("default", lanAddress(routerHost, six).String())
		l.neighbor.Route(map[bool]string{false: "192.0.2.0/24", true: "2001:db8::/64"}[six], lanAddress(directorHost, six).String())
	}
	var texts []string
	for _, s := range services {
		texts = append(texts, s.text())
	}
	for _, h := range append([]*netlab.Host{l.client, l.neighbor}, l.backends...) {
		l.agents[h.Name] = startDaemon(t, h, "agent", configText("", "eth0", texts...))
	}
	l.daemon = newDaemon(t, l.director, "run", configText(cmp.Or(s.uplinkName, "eth0"), "", texts...))
	l.daemon.vrf = s.vrf
	l.daemon.start()
	l.daemon.ready()
	l.waitRedirects("")
	return l
}

// waitRedirects waits until the director can hand connections over to every backend except those of
// this name, and to none of those.
func (l *redirectLab) waitRedirects(but string) {
	l.t.Helper()
	l.daemon.waitFor("find out whom connections can be handed over to", func() bool {
		return !slices.ContainsFunc(l.daemon.backends(), func(b api.Backend) bool {
			return b.Redirect == nil || b.Redirect.Able != (b.Name != but)
		})
	})
}

// passing counts the services' packets at the director: SYNs whose connections it handed over, and
// all others.
func (l *redirectLab) passing() (handed, others uint64) {
	l.t.Helper()
	handed = l.daemon.reason("forward_redirect")
	services, err := l.daemon.services()
	if err != nil {
		l.t.Fatal(err)
	}
	for _, s := range services {
		others += s.Packets + s.Dropped
	}
	return handed, others - handed
}

// bypasses runs something that opens this many connections (0: at least one). The director must see
// only their SYNs.
func (l *redirectLab) bypasses(t *testing.T, connections uint64, what func()) {
	t.Helper()
	handed, others := l.passing()
	what()
	nowHanded, nowOthers := l.passing()
	if n := nowHanded - handed; n != connections && (connections > 0 || n == 0) {
		t.Errorf("the director has handed %d connections over, want %d", n, connections)
	}
	if n := nowOthers - others; n != 0 {
		t.Errorf("the director has forwarded %d packets besides these connections' SYNs", n)
	}
}

// event is how often an event of redirection happened on a host.
func (l *redirectLab) event(host, name string) (sum uint64) {
	l.t.Helper()
	for _, r := range l.agents[host].agentStatus().Redirects {
		for _, e := range r.Events {
			if e.Name == name {
				sum += e.Count
			}
		}
	}
	return sum
}

// Unmodified clients and servers: the director sees the SYN of each connection, and nothing else.
// That also holds if client, director and backends share a link, over another port, if a backend
// answers with SYN cookies, and if netfilter tracks connections.
func TestRedirect(t *testing.T) {
	t.Parallel()
	web := redirectService{number: 1, port: 80, fallback: "gue", backends: everyBackend(3)}
	iperf := redirectService{number: 2, port: 5201, fallback: "ipip", backends: everyBackend(1)}
	redis := redirectService{number: 3, port: 6379, to: 6380, fallback: "nat", backends: everyBackend(2)}
	l := newRedirectLab(t, web, iperf, redis)
	for _, b := range l.backends {
		startNginx(t, b)
	}
	l.backends[1].Sysctl("net.ipv4.tcp_syncookies", "2")
	for _, b := range l.backends[:2] {
		startServer(t, b, netip.MustParseAddrPort("0.0.0.0:6380"), "redis-server", "--port", "6380", "--bind", "0.0.0.0", "::", "--protected-mode", "no", "--save", "", "--dir", b.Dir())
	}
	for _, six := range []bool{false, true} {
		// nginx ends a connection after a thousand requests.
		t.Run(fmt.Sprintf("wrk, IPv6 %v", six), func(t *testing.T) {
			l.bypasses(t, 0, func() {
				if out := on(t, l.client, "wrk", "-t", "1", "-c", "10", "-d", "1s", "http://"+netip.AddrPortFrom(redirectVIP(1, six), 80).String()+"/name"); strings.Contains(out, "Socket errors") || strings.Contains(out, "Non-2xx") {
					t.Errorf("wrk says:\n%s", out)
				}
			})
		})
		for _, h := range []*netlab.Host{l.client, l.neighbor} {
			name := fmt.Sprintf("%s, IPv%d: ", h.Name, map[bool]int{false: 4, true: 6}[six])
			url := "http://" + netip.AddrPortFrom(redirectVIP(1, six), 80).String() + "/name"
			t.Run(name+"curl", func(t *testing.T) {
				seen := map[string]bool{}
				l.bypasses(t, 20, func() {
					for range 20 {
						seen[on(t, h, "curl", "-sS", "--fail", "--max-time", "10", url)] = true
					}
				})
				// By chance all 20 may come from two backends.
				for n := 0; n < 200 && len(seen) < 3; n++ {
					seen[on(t, h, "curl", "-sS", "--fail", "--max-time", "10", url)] = true
				}
				if len(seen) != 3 {
					t.Errorf("answers came from %v, want all three backends", seen)
				}
			})
			t.Run(name+"redis-cli", func(t *testing.T) {
				l.bypasses(t, 1, func() {
					out := on(t, h, "redis-cli", "-h", redirectVIP(3, six).String(), "-p", "6379", "incr", "n")
					if strings.TrimSpace(out) == "" || strings.Contains(out, "rror") {
						t.Errorf("redis-cli says %s", out)
					}
				})
			})
			for direction, args := range map[string][]string{"up": nil, "down": {"--reverse"}} {
				t.Run(name+"iperf3 "+direction, func(t *testing.T) {
					at := netip.AddrPortFrom(lanAddress(backendHost, six), 5201)
					startServer(t, l.backends[0], at, "iperf3", "--server", "--one-off", "--bind", at.Addr().String())
					l.bypasses(t, 2, func() {
						on(t, h, "iperf3", append([]string{"--client", redirectVIP(2, six).String(), "--bytes", "20M"}, args...)...)
					})
				})
			}
		}
	}
	// Both hosts drop packets of connections that conntrack does not know.
	t.Run("conntrack", func(t *testing.T) {
		rules := write(t, l.client, "rules.nft", `table inet test {
	chain input {
		type filter hook input priority 0; policy drop;
		ct state established accept
		meta l4proto ipv6-icmp accept
	}
	chain output {
		type filter hook output priority 0;
		ct state invalid drop
	}
}`)
		on(t, l.client, "nft", "-f", rules)
		for _, b := range l.backends {
			on(t, b, "nft", "add table inet test")
			on(t, b, "nft", "add chain inet test input { type filter hook input priority 0; }")
			on(t, b, "nft", "add rule inet test input ct state invalid drop")
		}
		for i, six := range []bool{false, true} {
			l.bypasses(t, 10, func() {
				for range 10 {
					on(t, l.client, "curl", "-sS", "--fail", "--max-time", "10", "http://"+netip.AddrPortFrom(redirectVIP(1, six), 80).String()+"/name")
				}
			})
			l.bypasses(t, 1, func() {
				conn := l.dialFrom(t, six, samePort+i, web)
				answers(t, conn, "keep-alive")
				l.tracks(t, conn, web)
			})
		}
	})
	if n := l.event("client", "again") + l.event("neighbor", "again"); n != 0 {
		t.Errorf("%d SYNs were sent again", n)
	}
}

// Both ends learn the MTU between them from a router's ICMP errors, though neither SYN nor SYN-ACK
// told them of its small link.
//
//	client --- edge -1400- router --- switch --- director
//	                                         --- backend1
func TestRedirectedPathMTU(t *testing.T) {
	t.Parallel()
	l := newNarrowLab(t, size{backends: 1, edgeMTU: 1400}, redirectService{number: 1, port: 5201, fallback: "gue", backends: everyBackend(1)})
	for _, six := range []bool{false, true} {
		at := netip.AddrPortFrom(lanAddress(backendHost, six), 5201)
		for _, args := range [][]string{nil, {"--reverse"}} {
			startServer(t, l.backends[0], at, "iperf3", "--server", "--one-off", "--bind", at.Addr().String())
			l.bypasses(t, 2, func() {
				on(t, l.client, "iperf3", append([]string{"--client", redirectVIP(1, six).String(), "--bytes", "1M"}, args...)...)
			})
		}
	}
	if l.event("client", "error") == 0 {
		t.Error("no router has told the client's host what fits: this shows nothing")
	}
}

// A client without an agent is served by the service's fallback.
func TestRedirectFallback(t *testing.T) {
	t.Parallel()
	web := redirectService{number: 1, port: 80, fallback: "gue", backends: everyBackend(2)}
	l := newRedirectLab(t, web)
	for _, b := range l.backends {
		startNginx(t, b)
	}
	for _, six := range []bool{false, true} {
		t.Run(fmt.Sprintf("client without agent, IPv6 %v", six), func(t *testing.T) {
			handed, others := l.passing()
			on(t, l.router, "curl", "-sS", "--fail", "--max-time", "10", "http://"+web.at(six)+"/name")
			nowHanded, nowOthers := l.passing()
			if nowHanded != handed || nowOthers-others < 4 {
				t.Errorf("the director has handed %d connections over and forwarded %d packets, want 0 and all of the connection", nowHanded-handed, nowOthers-others)
			}
		})
	}
}

// Redirected connections go on whatever happens to directors, agents and backends that are not
// theirs: after the SYN no director is between client and backend.
func TestRedirectedConnectionsStay(t *testing.T) {
	t.Parallel()
	service := func(backends []backend) redirectService {
		return redirectService{number: 1, port: linesPort, fallback: "gue", backends: backends}
	}
	l := newRedirectLab(t, service(everyBackend(3)))
	for _, b := range l.backends {
		serveLines(t, b, b.Name)
	}
	type open struct {
		net.Conn
		answers *bufio.Reader
		backend string
	}
	ask := func(c *open) string {
		t.Helper()
		if err := c.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
			t.Fatal(err)
		}
		if _, err := fmt.Fprintln(c, "who"); err != nil {
			t.Fatalf("connection of %s: %v", c.backend, err)
		}
		line, err := c.answers.ReadString('\n')
		if err != nil {
			t.Fatalf("connection of %s: %v", c.backend, err)
		}
		return strings.TrimSpace(line)
	}
	var connections []*open
	dial := func(n int) {
		t.Helper()
		for i := range n {
			conn, err := l.client.DialContext(t.Context(), "tcp", netip.AddrPortFrom(redirectVIP(1, i%2 == 1), linesPort).String())
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { conn.Close() })
			c := &open{Conn: conn, answers: bufio.NewReader(conn)}
			c.backend = ask(c)
			connections = append(connections, c)
		}
	}
	goOn := func(what string) {
		t.Helper()
		for i, c := range connections {
			if is := ask(c); is != c.backend {
				t.Fatalf("%s: connection %d is answered by %s, and was by %s", what, i, is, c.backend)
			}
		}
	}
	l.bypasses(t, 40, func() { dial(40); goOn("nothing has happened") })
	text := func(interfaces, uplink string, backends ...backend) string {
		return configText(interfaces, uplink, service(backends).text())
	}
	l.daemon.edit(text("eth0", "", backend{number: 1}))
	l.daemon.ready()
	goOn("two backends are gone from the service")
	for _, host := range []string{"client", "backend2"} {
		a := l.agents[host]
		a.end(syscall.SIGKILL)
		goOn("no agent on " + host)
		a.edit(text("", "eth0", backend{number: 1}))
		a.start()
		a.waitFor("answer", func() bool {
			_, err := tryOn(t, a.host, weir, "status", "--alive", "--socket", a.socket)
			return err == nil
		})
		goOn("an agent on " + host + " that knows one backend")
	}
	l.bypasses(t, 6, func() { dial(6); goOn("new connections") })
	l.daemon.end(syscall.SIGTERM)
	on(t, l.director, weir, "detach", "--bpffs", l.daemon.bpffs)
	goOn("there is no director")
	for _, r := range l.agents["client"].agentStatus().Redirects {
		if want := len(connections) / 2; r.Connections != want {
			t.Errorf("the client's agent remembers %d connections of %s, want %d", r.Connections, r.Name, want)
		}
	}
	if n := l.event("client", "again"); n != 0 {
		t.Errorf("%d SYNs were sent again", n)
	}
}
