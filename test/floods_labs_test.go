package test

import (
	"fmt"
	"net/netip"
	"strings"
	"syscall"
	"testing"
)

// heavyBackends have other weights than the default.
var heavyBackends = []backend{{number: 1, weight: 20}, {number: 2}, {number: 3, weight: 300}}

// floodText is a director's file with room for only a few flows.
func floodText(services ...string) string {
	return strings.NewReplacer("  snat:\n", "  limits: {flows: 4096}\n  snat:\n", "ports: 20000-29999", "ports: 20000-24095").
		Replace(configText("eth0", "", services...))
}

// newFloodLab serves services of these texts, whose weights can be changed.
func newFloodLab(t *testing.T, w way, tcp, udp func(backends []backend) string) *floodLab {
	t.Helper()
	base := newLab(t, size{backends: 3})
	services := func(backends []backend) []string { return []string{tcp(backends), udp(backends)} }
	l := &floodLab{flowsUnderTest: flowsUnderTest{lab: base}, flooder: newFlooder(base),
		tcp: netip.AddrPortFrom(w.vip(), memoryPort), udp: netip.AddrPortFrom(w.vip(), memoryPort),
		heavy: floodText(services(everyBackend(3))...), light: floodText(services(heavyBackends)...)}
	for _, b := range l.backends {
		startDaemon(t, b, "agent", strings.Replace(configText("", "eth0", services(everyBackend(3))...), "agent:\n", "agent:\n  udp-flows: 4096\n", 1))
	}
	l.serveMemory(w)
	l.running = startDaemon(t, base.director, "run", l.heavy)
	return l
}

func serviceOf(w way, protocol, keys string) func([]backend) string {
	return func(backends []backend) string {
		return strings.Replace(w.service(protocol, fmt.Sprint(memoryPort), backends), "  backends:\n", keys+"  backends:\n", 1)
	}
}

func fullNATFloodLab(t *testing.T) *floodLab {
	w := way{mode: "nat", snat: true}
	return newFloodLab(t, w, serviceOf(w, "tcp", ""), serviceOf(w, "udp", ""))
}

// idleForLong retains generations for longer than the UDP flows are idle. A flow that sends a packet
// between two floods is as new as a flood's to the directors, which find no room for it: only the
// generation by which it was placed says where it is.
const idleForLong = "  retention: 10m\n"

func leastConnFloodLab(t *testing.T) *floodLab {
	w := way{mode: "ipip"}
	return newFloodLab(t, w, serviceOf(w, "tcp", "  policy: least-conn\n"), serviceOf(w, "udp", idleForLong))
}

func gueFloodLab(t *testing.T) *floodLab {
	w := way{mode: "gue"}
	return newFloodLab(t, w, serviceOf(w, "tcp", ""), serviceOf(w, "udp", ""))
}

func sixFloodLab(w way, keys string) func(t *testing.T) *floodLab {
	return func(t *testing.T) *floodLab {
		t.Helper()
		return newFloodLab(t, w, serviceOf(w, "tcp", keys), serviceOf(w, "udp", idleForLong))
	}
}

// podsFloodLab has pods on two hosts.
func podsFloodLab(t *testing.T) *floodLab {
	pods := newPodLab(t, 0, 2, 1)
	w := podWays[0]
	services := func() []string {
		udp := strings.Replace(pods.services("udp", memoryPort)[0], "  backends:\n", idleForLong+"  backends:\n", 1)
		return []string{pods.services("tcp", memoryPort)[0], udp}
	}
	for i, pod := range pods.pods {
		pods.answerAt(pod, netip.AddrPortFrom(podAddress(pods.of[i], pods.numbers[i], false), podPort(pods.numbers[i], memoryPort)))
	}
	l := &floodLab{flowsUnderTest: flowsUnderTest{lab: pods.lab}, flooder: newFlooder(pods.lab),
		tcp: netip.AddrPortFrom(w.vip(), memoryPort), udp: netip.AddrPortFrom(w.vip(), memoryPort)}
	pods.serve(services()...)
	l.heavy = floodText(services()...)
	pods.states[0] = "draining"
	l.light = floodText(services()...)
	l.running = pods.running
	l.again()
	return l
}

func redirectFloodLab(t *testing.T) *floodLab {
	of := func(backends []backend) redirectService {
		return redirectService{number: 1, port: memoryPort, fallback: "ipip", policy: "random", backends: backends}
	}
	redirect := newRedirectLab(t, of(everyBackend(3)))
	l := &floodLab{flowsUnderTest: flowsUnderTest{lab: redirect.lab}, flooder: newFlooder(redirect.lab),
		tcp: netip.AddrPortFrom(redirectVIP(1, false), memoryPort), heavy: floodText(of(everyBackend(3)).text()), running: redirect.daemon}
	l.light = floodText(of(everyBackend(2)).text())
	for _, b := range l.backends {
		l.answerAt(b, netip.AddrPortFrom(netip.IPv6Unspecified(), memoryPort))
	}
	l.again()
	redirect.waitRedirects("")
	return l
}

// again starts the director again, with room for only a few flows.
func (l *floodLab) again() {
	l.t.Helper()
	l.running.end(syscall.SIGTERM)
	l.running.edit(l.heavy)
	l.running.start()
	l.running.ready()
}
