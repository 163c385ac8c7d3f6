package main

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"weir.io/weir/internal/api"
	"weir.io/weir/internal/bfd"
	"weir.io/weir/internal/bgp"
	"weir.io/weir/internal/daemon"
	"weir.io/weir/internal/director"
	"weir.io/weir/internal/doctor"
	"weir.io/weir/internal/group"
	"weir.io/weir/internal/model"
	"weir.io/weir/internal/neighbor"
)

// examineBGP looks at what a session with each neighbor needs of this host. It asks no
// neighbor: a director may have a session with it, which a second one would disturb.
func examineBGP(b *model.BGP) []doctor.Finding {
	var findings []doctor.Finding
	for i := range b.Neighbors {
		findings = append(findings, examineNeighbor(&b.Neighbors[i]))
	}
	if len(b.Listen) > 0 {
		if who, is := stranger(holdersOf("tcp", model.DefaultBGPPort)); is {
			findings = append(findings, doctor.Finding{Level: doctor.Warn, Check: "bgp", Text: fmt.Sprintf("TCP port %d, for passive neighbors, is held by %v", model.DefaultBGPPort, who),
				Fix: "see that it does not listen at the addresses of bgp.listen"})
		}
	}
	return findings
}

func examineNeighbor(n *model.BGPNeighbor) doctor.Finding {
	bad := func(level doctor.Level, fix, format string, args ...any) doctor.Finding {
		return doctor.Finding{Level: level, Check: "bgp", Text: fmt.Sprintf("neighbor %s: ", n.Name()) + fmt.Sprintf(format, args...), Fix: fix}
	}
	if err := bgp.CheckPassword(n); err != nil {
		return bad(doctor.Fail, bgp.PasswordFix, "%v", err)
	}
	if on := n.On(); on != "" {
		if err := linkLocalOn(on); err != nil {
			return bad(doctor.Fail, "see that the interface is there and up, with IPv6 (net.ipv6.conf."+on+".disable_ipv6=0)", "%v", err)
		}
		if n.Interface != "" {
			return doctor.Finding{Level: doctor.OK, Check: "bgp", Text: fmt.Sprintf("neighbor %s, AS %d, whatever router advertises itself there", n.Name(), n.ASN)}
		}
	}
	local, err := localAddress(n)
	if err != nil {
		return bad(doctor.Fail, "add a route, or see that bgp.neighbors has the right address and source", "%v", err)
	}
	return doctor.Finding{Level: doctor.OK, Check: "bgp", Text: fmt.Sprintf("neighbor %s, AS %d, from %s", n.Name(), n.ASN, local)}
}

// linkLocalOn returns why routers cannot be reached on an interface by link-local addresses; nil:
// they can.
func linkLocalOn(name string) error {
	link, err := net.InterfaceByName(name)
	if err != nil {
		return fmt.Errorf("there is no interface %s", name)
	}
	addresses, err := link.Addrs()
	if err != nil {
		return fmt.Errorf("addresses of %s: %w", name, err)
	}
	for _, a := range addresses {
		if prefix, is := a.(*net.IPNet); is && prefix.IP.To4() == nil && prefix.IP.IsLinkLocalUnicast() {
			return nil
		}
	}
	return fmt.Errorf("%s has no link-local address", name)
}

// localAddress returns this end of a session, without opening one: connecting a datagram socket
// only looks at the routes.
func localAddress(n *model.BGPNeighbor) (netip.Addr, error) {
	dialer := net.Dialer{Control: bgp.InVRF(n.VRF)}
	if n.Source != nil {
		dialer.LocalAddr = net.UDPAddrFromAddrPort(netip.AddrPortFrom(*n.Source, 0))
	}
	conn, err := dialer.Dial("udp", netip.AddrPortFrom(n.Address, n.Port).String())
	if err != nil {
		return netip.Addr{}, err
	}
	defer conn.Close()
	return conn.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap(), nil
}

// examineBFD looks at what the BFD sessions of a configuration need of this host. The director
// tells their state.
func examineBFD(c *model.Config) []doctor.Finding {
	sessions := c.BFDSessions(nil)
	if len(sessions) == 0 {
		return nil
	}
	var findings []doctor.Finding
	ports := map[uint16]bool{}
	for i := range sessions {
		findings = append(findings, examineWay(&sessions[i])...)
		ports[bfd.Port(sessions[i].Multihop)] = true
	}
	for port := range ports {
		if who, is := stranger(holdersOf("udp", port)); is {
			findings = append(findings, doctor.Finding{Level: doctor.Fail, Check: "bfd", Text: fmt.Sprintf("UDP port %d is held by %v", port, who),
				Fix: "end it, or keep its BFD off: a host has one BFD daemon for an address"})
		}
	}
	return findings
}

// examineWay looks at one session.
func examineWay(s *model.BFDSession) []doctor.Finding {
	found := func(level doctor.Level, fix, format string, args ...any) []doctor.Finding {
		return []doctor.Finding{{Level: level, Check: "bfd", Text: fmt.Sprintf("neighbor %s: ", s.Name()) + fmt.Sprintf(format, args...), Fix: fix}}
	}
	if a := s.Authentication; a != nil {
		if err := bfd.CheckPassword(a); err != nil {
			return found(doctor.Fail, "put the key on the first line of a file that root can read", "%v", err)
		}
		return nil
	}
	if s.Multihop && s.TTLSecurity == 0 {
		return found(doctor.Warn, "give it ttl-security or authentication", "over several hops, packets in its name may come from anywhere")
	}
	return nil
}

// examineAnswers looks at what a director that answers for VIPs itself needs of this host.
func examineAnswers(c *model.Config) []doctor.Finding {
	n := &c.Director.Neighbor
	if !n.Given() {
		return nil
	}
	finding := func(level doctor.Level, fix, format string, args ...any) doctor.Finding {
		return doctor.Finding{Level: level, Check: "neighbor", Text: fmt.Sprintf(format, args...), Fix: fix}
	}
	var findings []doctor.Finding
	for i := range n.Interfaces {
		at := n.Interfaces[i].Place()
		switch prefixes, problem := neighbor.Examine(&n.Interfaces[i], c.Director.Interfaces); {
		case problem != "":
			findings = append(findings, finding(doctor.Fail, "", "no VIP is answered for on %s: %s", at, problem))
		case len(prefixes) == 0:
			findings = append(findings, finding(doctor.OK, "", "all VIPs of the segment are answered for on %s", at))
		default:
			findings = append(findings, finding(doctor.OK, "", "VIPs in %s are answered for on %s", list(prefixes), at))
		}
	}
	if c.Director.Store.Etcd.Given() {
		if own, _, err := director.DivideGroup(c.Director.Group); err != nil || len(own) == 0 {
			findings = append(findings, finding(doctor.Fail, "put this host's address in director.group", "none of the addresses in director.group is this host's, so it answers for nothing"))
		}
	}
	return findings
}

// etcdPatience is how long doctor waits for a group's store.
const etcdPatience = 10 * time.Second

// examineState looks at where a director keeps its state.
func examineState(s model.Store) []doctor.Finding {
	findings := []doctor.Finding{examineDirectory(daemon.StateDirectory(s))}
	if s.Etcd.Given() {
		findings = append(findings, examineEtcd(s.Etcd))
	}
	return findings
}

// examineDirectory says whether a director, which makes missing directories, could write there.
func examineDirectory(dir string) doctor.Finding {
	at, err := daemon.CheckDirectory(dir)
	if err != nil {
		return doctor.Finding{Level: doctor.Fail, Check: "state", Text: fmt.Sprintf("%s cannot be written: %v", at, err),
			Fix: "make it writable, or name another directory in director.store.directory"}
	}
	text := dir
	if at != dir {
		text += " does not exist; weir run makes it"
	}
	return doctor.Finding{Level: doctor.OK, Check: "state", Text: text}
}

// examineEtcd reads the group's state once, as a director does at its start.
func examineEtcd(e model.Etcd) doctor.Finding {
	fix := "see that its members run and that director.store.etcd is right: a director that starts now uses the group's last known state"
	return askEtcd(e, fix, func(ctx context.Context, group *group.Group) (string, error) {
		state, err := group.Read(ctx)
		if err != nil {
			return "", err
		}
		return fmt.Sprintf("revision %d, %d services of owners %s",
			state.Revision, state.Count(), strings.Join(state.Owners(), ", ")), nil
	})
}

// examineReports asks whether an agent could report the connections of these backends.
func examineReports(s model.AgentStore, backends []model.HostAddress) []doctor.Finding {
	if s.Directors.Given() {
		return askDirectors(&s.Directors, backends)
	}
	if !s.Etcd.Given() {
		return nil
	}
	fix := "see that its members run, that agent.store.etcd is right and that its user may write these keys: directors do not learn of this host's connections"
	return []doctor.Finding{askEtcd(s.Etcd, fix, func(ctx context.Context, to *group.Group) (string, error) {
		if len(backends) == 0 {
			return "no backend of this host is of mode gue: there is nothing to report", to.MayReport(ctx, nil)
		}
		return fmt.Sprintf("takes reports about %d backends of this host", len(backends)), to.MayReport(ctx, backends)
	})}
}

// askDirectors asks each director to which an agent reports what it takes.
func askDirectors(to *model.AgentDirectors, backends []model.HostAddress) []doctor.Finding {
	findings := make([]doctor.Finding, len(to.Endpoints))
	var asking sync.WaitGroup
	for i, url := range to.Endpoints {
		asking.Go(func() {
			findings[i] = doctor.Finding{Level: doctor.Fail, Check: "reports to " + url,
				Fix: "see that agent.store.directors is right, and that the director's api.clients has the role agent, and the addresses and segment of this host's backend: it does not learn of this host's connections"}
			text, err := askDirector(to, url, backends)
			if err != nil {
				findings[i].Text = err.Error()
				return
			}
			findings[i] = doctor.Finding{Level: doctor.OK, Check: findings[i].Check, Text: text}
		})
	}
	asking.Wait()
	return findings
}

func askDirector(to *model.AgentDirectors, url string, backends []model.HostAddress) (text string, err error) {
	client, err := api.NewRemoteClient(api.RemoteOptions{URL: url, CA: to.CA, Cert: to.Cert, Key: to.Key, TokenFile: to.TokenFile})
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(context.Background(), directorPatience)
	defer cancel()
	may, err := client.Reportable(ctx)
	if err != nil {
		return "", err
	}
	if apart := time.Until(may.Time).Abs(); apart > model.MostAhead {
		return "", fmt.Errorf("its clock and this host's are %v apart, and may be %v: let both follow the same time servers", apart.Round(time.Second), model.MostAhead)
	}
	var own []string
	for _, a := range may.Addresses {
		at := model.HostAddress{Segment: may.Segment, Address: a}
		if slices.Contains(backends, at) {
			return fmt.Sprintf("takes reports of %s, about %s", at, daemon.ServicesText(len(may.Services))), nil
		}
		own = append(own, at.String())
	}
	if len(backends) == 0 {
		return "no backend of this host is of mode gue: there is nothing to report", nil
	}
	return "", fmt.Errorf("it takes reports of %s, and the backends of this host are %v", strings.Join(own, " and "), backends)
}

// directorPatience is how long doctor waits for a director that takes reports.
const directorPatience = 5 * time.Second

// askEtcd asks etcd something once.
func askEtcd(e model.Etcd, fix string, ask func(context.Context, *group.Group) (answer string, err error)) doctor.Finding {
	finding := doctor.Finding{Level: doctor.Fail, Check: "etcd", Fix: fix}
	options := daemon.EtcdOptions(e)
	options.Log = slog.New(slog.DiscardHandler)
	group, err := group.Open(options, "")
	if err != nil {
		finding.Text = err.Error()
		return finding
	}
	defer group.Close()
	ctx, cancel := context.WithTimeout(context.Background(), etcdPatience)
	defer cancel()
	answer, err := ask(ctx, group)
	if err != nil {
		finding.Text = err.Error()
		return finding
	}
	return doctor.Finding{Level: doctor.OK, Check: "etcd", Text: e.Prefix + ": " + answer}
}

// holder is a process that has a port.
type holder struct {
	pid  int
	name string // as /proc/PID/comm has it
}

// String is the holder's name in findings.
func (h holder) String() string {
	if h.pid == 0 {
		return "a process that cannot be seen from here"
	}
	return fmt.Sprintf("%s (process %d)", h.name, h.pid)
}

// holdersOf returns the processes that have a port of this network namespace: "udp" sockets that
// are bound, "tcp" sockets that listen. It reads the tables of /proc/net (proc_net(5)), and needs
// root to find the sockets' processes.
func holdersOf(protocol string, port uint16) []holder {
	sockets := map[string]bool{}
	for _, table := range []string{protocol, protocol + "6"} {
		socketsIn("/proc/thread-self/net/"+table, protocol == "tcp", port, sockets)
	}
	if len(sockets) == 0 {
		return nil
	}
	var holders []holder
	links, _ := filepath.Glob("/proc/[0-9]*/fd/*") // its only error is a bad pattern
	seen := map[int]bool{}
	for _, link := range links {
		to, err := os.Readlink(link)
		if err != nil || !sockets[to] {
			continue // the process has ended meanwhile, or it is another file
		}
		parts := strings.Split(link, "/")
		pid, err := strconv.Atoi(parts[2])
		if err != nil || seen[pid] {
			continue
		}
		seen[pid] = true
		name, _ := os.ReadFile("/proc/" + parts[2] + "/comm") // no name: the process has ended meanwhile
		holders = append(holders, holder{pid, strings.TrimSpace(string(name))})
	}
	if holders == nil {
		holders = []holder{{}}
	}
	return holders
}

// socketsIn adds the sockets of a table that have the port, as /proc/PID/fd names them.
func socketsIn(table string, listening bool, port uint16, sockets map[string]bool) {
	const listen = "0A"
	file, err := os.Open(table)
	if err != nil {
		return // the kernel has no IPv6
	}
	defer file.Close()
	want := fmt.Sprintf(":%04X", port)
	for lines := bufio.NewScanner(file); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if len(fields) < 10 || !strings.HasSuffix(fields[1], want) || listening && fields[3] != listen {
			continue
		}
		sockets["socket:["+fields[9]+"]"] = true
	}
}

// stranger returns the process that has a port that weir does not have: each may have it at its own
// addresses.
func stranger(holders []holder) (h holder, is bool) {
	if len(holders) == 0 || slices.ContainsFunc(holders, func(h holder) bool { return h.name == "weir" }) {
		return holder{}, false
	}
	return holders[0], true
}
