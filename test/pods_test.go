package test

import (
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"

	"weir.io/weir/lab/netlab"
)

// podWays are the ways to pods: ipip keeps the family, because its tunnel ends at the pod's
// address.
var podWays = []way{
	{mode: "gue"}, {mode: "gue", inner6: true, outer6: true}, {mode: "gue", inner6: true}, {mode: "gue", outer6: true},
	{mode: "ipip"}, {mode: "ipip", inner6: true, outer6: true},
}

// podLab is a lab in which the hosts of the backends and of the director are nodes:
//
//	client --- router --- switch --- director --- pods of node 0
//	                             --- backend1 --- pods of node 1
//	                             --- backend2 --- pods of node 2
//
// Pods know nothing of VIPs, and hosts route to the pods' addresses, as a CNI does.
type podLab struct {
	*lab
	pods    []*netlab.Host
	of      []int // the node of each pod
	numbers []int // of each pod on its node
	states  []string
	agents  map[int]*daemon
	running *daemon
}

// newPodLab makes this many pods on each node.
func newPodLab(t *testing.T, each ...int) *podLab {
	t.Helper()
	return newPodLabOf(t, size{}, each...)
}

func newPodLabOf(t *testing.T, s size, each ...int) *podLab {
	t.Helper()
	s.backends = len(each) - 1
	l := &podLab{lab: newLab(t, s), agents: map[int]*daemon{}}
	for node, n := range each {
		h := l.node(node)
		h.Sysctl("net.ipv4.ip_forward", "1")
		h.Sysctl("net.ipv6.conf.all.forwarding", "1")
		for number := 1; number <= n; number++ {
			pod := l.Host(fmt.Sprintf("pod%d%c", node, 'a'+number-1))
			var inside, outside []string
			for _, six := range []bool{false, true} {
				bits := map[bool]int{false: 24, true: 64}[six]
				inside = append(inside, netip.PrefixFrom(podAddress(node, number, six), bits).String())
				outside = append(outside, netip.PrefixFrom(podGateway(node, number, six), bits).String())
			}
			l.Link(pod, h, netlab.LinkOptions{A: inside, B: outside})
			for _, six := range []bool{false, true} {
				pod.Route("default", podGateway(node, number, six).String())
				if node > 0 { // ipip needs these routes
					at := podAddress(node, number, six)
					l.director.Route(netip.PrefixFrom(at, at.BitLen()).String(), l.host(node, six).String())
				}
			}
			l.pods, l.of, l.numbers, l.states = append(l.pods, pod), append(l.of, node), append(l.numbers, number), append(l.states, "active")
		}
	}
	return l
}

func (l *podLab) node(node int) *netlab.Host {
	if node == 0 {
		return l.director
	}
	return l.backends[node-1]
}

// host is the address of a node.
func (l *podLab) host(node int, six bool) netip.Addr {
	if node == 0 {
		return lanAddress(directorHost, six)
	}
	return lanAddress(backendHost+node-1, six)
}

func podAddress(node, number int, six bool) netip.Addr {
	if six {
		return netip.MustParseAddr(fmt.Sprintf("fd00:24%d:%d::2", node, number))
	}
	return netip.AddrFrom4([4]byte{10, byte(240 + node), byte(number), 2})
}

func podGateway(node, number int, six bool) netip.Addr { return podAddress(node, number, six).Prev() }

// podPort is the port of a pod's servers for a service's port: each pod of a node has its own.
func podPort(number int, port uint16) uint16 { return port + 8000 + uint16(number) }

// services are one for each way, with all pods except those whose state is empty.
func (l *podLab) services(protocol string, port uint16) (list []string) {
	for _, w := range podWays {
		text := fmt.Sprintf("- name: %s-%s-%d\n  vip: %s\n  protocol: %s\n  port: %d\n  mode: %s\n  backends:\n", w, protocol, port, w.vip(), protocol, port, w.mode)
		for i, pod := range l.pods {
			if l.states[i] != "" {
				text += fmt.Sprintf("  - {name: %s, address: \"%s\", port: %d, host: \"%s\", state: %s}\n", pod.Name,
					podAddress(l.of[i], l.numbers[i], w.inner6), podPort(l.numbers[i], port), l.host(l.of[i], w.outer6), l.states[i])
			}
		}
		list = append(list, text)
	}
	return list
}

// serve starts agents on the nodes that have pods, and the director.
func (l *podLab) serve(services ...string) {
	l.t.Helper()
	for _, node := range l.of {
		if l.agents[node] == nil {
			l.agents[node] = startDaemon(l.t, l.node(node), "agent", configText("", "eth0", services...))
		}
	}
	l.running = startDaemon(l.t, l.director, "run", configText("eth0", "", services...))
}

// wantNothingOn fails if a host has a VIP on lo.
func wantNothingOn(t *testing.T, h *netlab.Host) {
	t.Helper()
	err := h.Do(func() error {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		list, err := netlink.AddrList(lo, netlink.FAMILY_ALL)
		for _, a := range list {
			if !a.IP.IsLoopback() {
				t.Errorf("%s has %s on lo", h.Name, a.IPNet)
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// count is the sum of a reason over all agents.
func (l *podLab) count(t *testing.T, reason string) uint64 {
	t.Helper()
	return countedBy(maps.Values(l.agents), reason)
}

// Pods are backends, in both modes and all families, though neither they nor their hosts have the
// VIP: two on one host at different ports, one on another host, and one on the director's. Each
// sees its clients' addresses, and large transfers arrive both ways.
func TestPods(t *testing.T) {
	t.Parallel()
	l := newPodLab(t, 1, 2, 1)
	var roots []string
	for i, pod := range l.pods {
		roots = append(roots, startNginxAt(t, pod, podPort(l.numbers[i], 80)))
	}
	l.serve(l.services("tcp", 80)...)
	for _, w := range podWays {
		t.Run(w.String(), func(t *testing.T) {
			answers := map[string]int{}
			for range 60 {
				answers[curl(t, l.client, w.url("name"))]++
			}
			// One of four pods gets fewer than 3 of 60 once in 10^5 times.
			for _, pod := range l.pods {
				if answers[pod.Name] < 3 {
					t.Errorf("60 answers come from %v, want them from all pods", answers)
				}
			}
			client := map[bool]string{false: "10.0.0.2", true: "fd00::2"}[w.inner6]
			for range 8 {
				if got := curl(t, l.client, w.url("client")); got != client {
					t.Errorf("a pod sees %s as its client, want %s", got, client)
				}
			}
			for range 2 { // probably by several pods
				download(t, l.client, w, roots)
				for _, root := range roots {
					if err := os.RemoveAll(filepath.Join(root, "upload", w.String())); err != nil {
						t.Fatal(err)
					}
				}
				upload(t, l.client, w, roots)
			}
		})
	}
	for _, h := range append(append([]*netlab.Host{l.director}, l.backends...), l.pods...) {
		wantNothingOn(t, h)
	}
	for _, never := range []string{"drop_no_pod", "drop_pod_taken", "drop_decap_failed", "drop_row_malformed", "decap_last_resort"} {
		if n := l.count(t, never); n > 0 {
			t.Errorf("the agents count %d packets as %s", n, never)
		}
	}
	status := l.agents[1].agentStatus()
	if len(status.Pods) != 2*len(podWays) {
		t.Errorf("the agent says that it has %d pods, want two for each service: %+v", len(status.Pods), status.Pods)
	}
}

// Open connections stay with their pods while those drain, weights change, agents are killed
// and start again, and another director takes over while the pods change. A pod that is removed
// takes its connections along.
func TestPodsOutliveChanges(t *testing.T) {
	t.Parallel()
	for _, cookies := range []string{"1", "2"} {
		t.Run("syncookies "+cookies, func(t *testing.T) { outlivePods(t, cookies) })
	}
}

func outlivePods(t *testing.T, cookies string) {
	l := newPodLab(t, 0, 2, 1)
	other, _ := l.secondDirector()
	for _, six := range []bool{false, true} {
		for i := range l.pods {
			at := podAddress(l.of[i], l.numbers[i], six)
			other.Route(netip.PrefixFrom(at, at.BitLen()).String(), l.host(l.of[i], six).String())
		}
	}
	chance := &chanceLab{lab: l.lab, other: other}
	for i, pod := range l.pods {
		pod.Sysctl("net.ipv4.tcp_syncookies", cookies)
		serveLinesAt(t, pod, podPort(l.numbers[i], linesPort), pod.Name)
	}
	text := func(director int, what string) string {
		own, others := lanAddress(director, false), lanAddress(director, true)
		text := configText(map[bool]string{true: "eth0", false: ""}[what == "run"], map[bool]string{true: "eth0", false: ""}[what == "agent"], l.services("tcp", linesPort)...)
		text = strings.NewReplacer(lanAddress(directorHost, false).String()+",", own.String()+",", lanAddress(directorHost, true).String()+"\"", others.String()+"\"").Replace(text)
		return strings.Replace(text, "\ndirectors: [", fmt.Sprintf("\ndirectors: [%s, \"%s\", %s, \"%s\", ", lanAddress(directorHost, false), lanAddress(directorHost, true), lanAddress(otherDirector, false), lanAddress(otherDirector, true)), 1)
	}
	for _, node := range []int{1, 2} {
		l.agents[node] = startDaemon(t, l.node(node), "agent", text(directorHost, "agent"))
		chance.agents = append(chance.agents, l.agents[node])
	}
	l.running = startDaemon(t, l.director, "run", text(directorHost, "run"))
	chance.running = l.running
	var sessions []*session
	for _, w := range podWays {
		for range 12 {
			sessions = append(sessions, chance.open(t, w))
		}
	}
	stays := func(what string) {
		t.Helper()
		for _, s := range sessions {
			if got := s.ask(t); got != s.backend {
				t.Fatalf("%s: %s has a connection of %s (%s)", what, got, s.backend, s.way)
			}
		}
	}
	change := func(what string, states ...string) {
		t.Helper()
		l.states = states
		for _, node := range []int{1, 2} {
			l.agents[node].edit(text(directorHost, "agent"))
		}
		chance.running.edit(text(directorHost, "run"))
		chance.running.ready()
		stays(what)
	}
	stays("at first")
	change("a pod drains", "draining", "active", "active")
	change("it is back, and others drain", "active", "draining", "draining")
	change("all are back", "active", "active", "active")
	if l.count(t, "passed_on") == 0 {
		t.Error("no packet was sent on to another host, so this shows nothing")
	}
	for _, node := range []int{1, 2} {
		l.agents[node].end(syscall.SIGKILL)
		stays("an agent is killed")
		l.agents[node].start()
		l.agents[node].ready()
		stays("it is there again")
	}
	// In ipip only the director knows the pod of a connection on another node.
	var gue []*session
	for _, s := range sessions {
		if s.way.mode == "gue" {
			gue = append(gue, s)
		}
	}
	sessions = gue
	l.states = []string{"draining", "active", "active"}
	chance.replaceDirector(t, text(otherDirector, "run"))
	stays("another director and other pods at once")
	if n := l.count(t, "decap_last_resort"); n > 0 {
		t.Errorf("%d packets came to nobody who knew them", n)
	}
	before := map[string]int{}
	for _, s := range sessions {
		before[s.backend]++
	}
	l.states = []string{"", "active", "active"}
	for _, node := range []int{1, 2} {
		l.agents[node].edit(text(otherDirector, "agent"))
	}
	chance.running.edit(text(otherDirector, "run"))
	chance.running.ready()
	l.agents[1].waitFor("have one pod for each service", func() bool { return len(l.agents[1].agentStatus().Pods) == len(podWays) })
	for _, s := range sessions {
		switch got, err := s.tryAsk(); {
		case s.backend == l.pods[0].Name && err == nil:
			t.Errorf("%s answers on a connection of a pod that is removed", got)
		case s.backend != l.pods[0].Name && (err != nil || got != s.backend):
			t.Errorf("a connection of %s is answered by %q (%v) when another pod is removed", s.backend, got, err)
		}
	}
	if before[l.pods[0].Name] == 0 || len(before) != 3 {
		t.Errorf("connections were on %v, which shows nothing", before)
	}
}
