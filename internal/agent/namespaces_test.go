package agent

import (
	"net"
	"net/netip"
	"slices"
	"testing"

	"weir.io/weir/internal/model"
	"weir.io/weir/lab/netlab"
	"weir.io/weir/lab/packet"
)

// container is another network namespace of the host's, which has the VIPs:
//
//	client ---- host ---- container
func (s *street) container() *netlab.Host {
	c := s.lab.Host("container")
	s.lab.Link(s.host, c, netlab.LinkOptions{
		A: []string{"10.9.0.1/24", "2001:db8:9:9::1/64"}, B: []string{"10.9.0.2/24", "2001:db8:9:9::2/64"}})
	c.Route("default", "10.9.0.1")
	c.Route("default", "2001:db8:9:9::1")
	c.Address("lo", vip4.String()+"/32", vip6.String()+"/128")
	s.host.Sysctl("net.ipv4.ip_forward", "1")
	s.host.Sysctl("net.ipv6.conf.all.forwarding", "1")
	s.host.Route(vip4.String()+"/32", "10.9.0.2")
	s.host.Route(vip6.String()+"/128", "2001:db8:9:9::2")
	return c
}

// lookAt makes the programs look at these namespaces.
func (r *second) lookAt(t *testing.T, names ...string) {
	t.Helper()
	p := r.plan
	do(t, r.street.host, "find namespaces", func() error {
		found, _, err := findNamespaces(names)
		p.namespaces = found.namespaces
		return err
	})
	tables, err := newTables(p, nil, nil, r.Services.MaxEntries())
	if err != nil {
		t.Fatal(err)
	}
	if err := tables.put(&r.bpfMaps); err != nil {
		t.Fatal(err)
	}
}

// TestSocketsInNamespaces is the table of TestSecondChance where the servers are in
// another namespace, after some that have nothing.
func TestSocketsInNamespaces(t *testing.T) {
	s := newStreet(t, true)
	r := &second{testHost: newTestHost(t), wire: s.wire(t), accepted: make(chan net.Conn, 64)}
	container := s.container()
	var names []string
	for _, name := range []string{"empty1", "empty2"} {
		names = append(names, s.lab.Host(name).Namespace())
	}
	names = append(names, "there-is-none", "/run/netns/"+container.Namespace())
	for _, vip := range []netip.Addr{vip4, vip6} {
		r.serve(t, container, vip)
		t.Run(vip.String(), func(t *testing.T) {
			r.lookAt(t)
			f := r.flow(vip)
			f.open()
			r.accept(t)
			inner := f.segment(packet.ACK, f.next, f.ack, "data")
			r.judge(t, inner, false)
			r.lookAt(t, names...)
			r.judge(t, inner, true)
			r.judge(t, f.quoted(f.ack), true)
			for _, cookies := range []string{"1", "2"} {
				container.Sysctl("net.ipv4.tcp_syncookies", cookies)
				t.Run("no connection, syncookies "+cookies, func(t *testing.T) { r.testListen(t, vip) })
				t.Run("established, syncookies "+cookies, func(t *testing.T) { r.testEstablished(t, vip) })
			}
			t.Run("cookie", func(t *testing.T) { r.testCookie(t, vip) })
			container.Sysctl("net.ipv4.tcp_syncookies", "1")
			t.Run("request", func(t *testing.T) { r.testRequest(t, vip) })
			t.Run("time wait", func(t *testing.T) { r.testTimeWait(t, vip) })
			r.lookAt(t, names[:2]...)
			r.judge(t, inner, false)
		})
	}
	if got := r.Namespaces.MaxEntries(); got != model.MaxNamespaces {
		t.Errorf("programs look at %d namespaces, a configuration may name %d", got, model.MaxNamespaces)
	}
}

// TestVIPsInNamespaces: a VIP that another namespace has is not put on the host's lo,
// where its packets would end; once nobody has it, it is.
func TestVIPsInNamespaces(t *testing.T) {
	s := newStreet(t, true)
	container := s.container()
	config := testConfig()
	config.Agent.Namespaces = []string{container.Namespace()}
	a := s.agent(t, AttachAuto)
	defer s.detach(t, a)
	for _, test := range []struct {
		names []string
		want  []netip.Addr
	}{
		{[]string{container.Namespace()}, []netip.Addr{rangeVIP4, rangeVIP6}},
		{nil, []netip.Addr{vip4, rangeVIP4, vip6, rangeVIP6}},
		{[]string{container.Namespace()}, []netip.Addr{rangeVIP4, rangeVIP6}},
		{[]string{"there-is-none"}, []netip.Addr{vip4, rangeVIP4, vip6, rangeVIP6}},
	} {
		config.Agent.Namespaces = test.names
		do(t, s.host, "set", func() error { return a.Set(config) })
		if got := s.status(t, a).VIPs; !slices.Equal(got, test.want) {
			t.Errorf("with namespaces %v the VIPs on lo are %v, want %v", test.names, got, test.want)
		}
	}
}
