package test

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"
)

// The client has two addresses.
const (
	memberHost = 2
	guestHost  = 3
)

func clientAddress(host int, six bool) netip.Addr {
	if six {
		return netip.MustParseAddr(fmt.Sprintf("fd00::%d", host))
	}
	return netip.AddrFrom4([4]byte{10, 0, 0, byte(host)})
}

// sourceServices are a TCP and a UDP service for each way, for one of the client's addresses.
func sourceServices(of int) (services []string) {
	for _, w := range ways {
		for _, protocol := range []string{"tcp", "udp"} {
			text := w.service(protocol, fmt.Sprint(memoryPort), everyBackend(2))
			keys := fmt.Sprintf("  source-ranges: [\"%s\"]\n  backends:\n", clientAddress(of, w.inner6))
			services = append(services, strings.Replace(text, "  backends:\n", keys, 1))
		}
	}
	return services
}

// sourceLab calls services from either of the client's addresses.
type sourceLab struct {
	*lab
	daemon *daemon
}

// Clients in a service's source ranges are served in every mode. Others are not: neither new
// connections, nor those that were open when the ranges changed, nor datagrams, nor while only the
// program runs.
//
//	client --- router --- switch --- director
//	                             --- backend1, backend2
func TestSourceRanges(t *testing.T) {
	t.Parallel()
	l := &sourceLab{lab: newLab(t, size{backends: 2})}
	l.client.Address("eth0", clientAddress(guestHost, false).String()+"/24", clientAddress(guestHost, true).String()+"/64")
	for _, b := range l.backends {
		startDaemon(t, b, "agent", configText("", "eth0", sourceServices(memberHost)...))
	}
	l.serveMemory(ways...)
	l.daemon = startDaemon(t, l.director, "run", configText("eth0", "", sourceServices(memberHost)...))
	open := map[way]*flowUnderTest{}
	for _, w := range ways {
		open[w] = l.dialFrom(w, "tcp", memberHost)
		l.answers(w, open[w])
		l.answers(w, l.dialFrom(w, "udp", memberHost))
		l.refused(w, "tcp", guestHost)
		l.refused(w, "udp", guestHost)
	}
	l.daemon.edit(configText("eth0", "", sourceServices(guestHost)...))
	for _, w := range ways {
		l.refused(w, "udp", memberHost) // as soon as the file is read
		l.answers(w, l.dialFrom(w, "tcp", guestHost))
		l.answers(w, l.dialFrom(w, "udp", guestHost))
		l.refused(w, "tcp", memberHost)
		dropped := l.dropped(w, "tcp")
		l.must(open[w].SetWriteDeadline(time.Now().Add(time.Minute)))
		if _, err := fmt.Fprintln(open[w], "still there?"); err != nil {
			t.Errorf("%s: %v", w, err)
		}
		l.daemon.waitFor(fmt.Sprintf("drop what %s has open", w), func() bool { return l.dropped(w, "tcp") > dropped })
	}
	w := ways[0]
	dropped := l.dropped(w, "udp")
	l.daemon.end(syscall.SIGKILL)
	l.answers(w, l.dialFrom(w, "tcp", guestHost))
	c := l.dialFrom(w, "udp", memberHost)
	const datagrams = 5
	for range datagrams {
		if _, err := c.Write([]byte("anybody?")); err != nil {
			t.Error(err)
		}
	}
	l.answers(w, l.dialFrom(w, "udp", guestHost))
	l.daemon.start()
	l.daemon.ready()
	l.daemon.waitFor("have counted what was dropped meanwhile", func() bool { return l.dropped(w, "udp") >= dropped+datagrams })
	l.refused(w, "tcp", memberHost)
	l.answers(w, l.dialFrom(w, "tcp", guestHost))
}

func (l *sourceLab) dialer(network string, host int, six bool) net.Dialer {
	local := net.Addr(&net.TCPAddr{IP: clientAddress(host, six).AsSlice()})
	if network == "udp" {
		local = &net.UDPAddr{IP: clientAddress(host, six).AsSlice()}
	}
	return net.Dialer{LocalAddr: local, KeepAlive: -1}
}

// dialFrom opens a connection, or a UDP flow, from one of the client's addresses.
func (l *sourceLab) dialFrom(w way, network string, host int) *flowUnderTest {
	l.t.Helper()
	ctx, cancel := context.WithTimeout(l.t.Context(), time.Minute)
	defer cancel()
	var f *flowUnderTest
	l.must(l.client.Do(func() error {
		dialer := l.dialer(network, host, w.inner6)
		c, err := dialer.DialContext(ctx, network, netip.AddrPortFrom(w.vip(), memoryPort).String())
		if err != nil {
			return fmt.Errorf("%s over %s by %d: %w", network, w, host, err)
		}
		l.t.Cleanup(func() { c.Close() })
		f = &flowUnderTest{Conn: c, lines: bufio.NewReader(c), name: fmt.Sprintf("%s over %s from %v", network, w, c.LocalAddr())}
		return nil
	}))
	return f
}

func (l *sourceLab) answers(w way, f *flowUnderTest) {
	l.t.Helper()
	if _, err := f.ask(); err != nil {
		l.t.Fatalf("%s is not answered: %v", f.name, err)
	}
}

// dropped is the service's counter.
func (l *sourceLab) dropped(w way, network string) uint64 {
	services, err := l.daemon.services()
	if err != nil {
		return 0
	}
	for _, s := range services {
		if s.Name == fmt.Sprintf("%s-%s-%d", w, network, memoryPort) {
			return s.Dropped
		}
	}
	return 0
}

// refused sends SYNs or datagrams until the director has dropped some, and checks that nothing
// answered.
func (l *sourceLab) refused(w way, network string, host int) {
	l.t.Helper()
	before := l.dropped(w, network)
	ctx, cancel := context.WithCancel(l.t.Context())
	answered := make(chan string, 1)
	if network == "tcp" {
		go func() {
			defer close(answered)
			_ = l.client.Do(func() error {
				dialer := l.dialer(network, host, w.inner6)
				c, err := dialer.DialContext(ctx, network, netip.AddrPortFrom(w.vip(), memoryPort).String())
				if err == nil {
					answered <- c.LocalAddr().String()
					c.Close()
				}
				return nil
			})
		}()
		l.daemon.waitFor(fmt.Sprintf("drop SYNs of %s", w), func() bool { return l.dropped(w, network) > before || len(answered) > 0 })
		cancel()
		if by, is := <-answered; is {
			l.t.Fatalf("tcp over %s: %s is let in", w, by)
		}
		return
	}
	defer cancel()
	c := l.dialFrom(w, network, host)
	l.daemon.waitFor(fmt.Sprintf("drop datagrams of %s", w), func() bool {
		_, err := c.Write([]byte("may I?"))
		return err == nil && l.dropped(w, network) > before
	})
}
