package main

import (
	"slices"
	"strings"
	"testing"

	"weir.io/weir/internal/api"
	"weir.io/weir/internal/model"
	"weir.io/weir/lab/etcdlab"
)

// A failure that doctor finds on the host of a running director is shown everywhere as soon as
// somebody causes it, once, until it is put right: an address of SNAT that is gone, an MTU that
// holds no packets, a VIP that the kernel answers for.
func TestFailuresOfTheHostAreShownEverywhere(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.run("ip", "addr", "add", "10.0.0.9/32", "dev", "eth0")
	h.write("director: {interfaces: [eth0], store: {directory: " + h.beside("state") + "}, snat: {addresses: [10.0.0.9]}, neighbor: {interfaces: [{name: eth0, prefixes: [10.0.0.0/24]}]}}\nservices:\n" +
		"- {name: web, vip: 10.0.0.80, protocol: tcp, port: 80, mode: nat, snat: true, backends: [{address: 10.0.0.2}]}\n" +
		"- {name: far, vip: 10.0.0.81, protocol: tcp, port: 80, mode: ipip, backends: [{address: 10.0.0.2}]}\n")
	p := h.start(`msg="director runs"`)
	h.resolvedNow(p)
	hands := []struct{ breaks, mends, part, text string }{
		{"link set eth0 mtu 1200", "link set eth0 mtu 1500", "mtu eth0", "1200 leaves 1180 bytes for packets by ipip, less than IPv6 may rely on"},
		{"addr add 10.0.0.81/32 dev eth0", "addr del 10.0.0.81/32 dev eth0", "neighbor", "10.0.0.81 is an address of eth0: the kernel answers for it also when another director owns it"},
		{"addr del 10.0.0.9/32 dev eth0", "addr add 10.0.0.9/32 dev eth0", "snat 10.0.0.9",
			"is on no interface of this host: backends on eth0 ask for it by ARP or neighbor requests, and nobody answers"},
	}
	for _, hand := range hands {
		h.run("ip", strings.Fields(hand.breaks)...)
	}
	var got []model.Problem
	p.wait("list three problems", func() bool { // beside what it says of the interface's smaller MTU
		got = slices.DeleteFunc(h.statusNow().Problems, func(p model.Problem) bool { return p.Kind != model.ProblemHost })
		return len(got) == len(hands)
	})
	status, code := h.exits("status", "--socket", h.socket)
	events, _ := h.exits("events", "--last", "1000", "--socket", h.socket, "-o", "json")
	found, examined := h.doctorOfProcess()
	if code != exitProblems || examined != exitFailed {
		t.Errorf("weir status ends with %d, and weir doctor with %d", code, examined)
	}
	for i, hand := range hands {
		if got[i].Kind != model.ProblemHost || got[i].Part != hand.part || got[i].Severity != model.SeverityError || got[i].Text != hand.part+": "+hand.text || got[i].Fix == "" {
			t.Errorf("after ip %s the problem is %+v", hand.breaks, got[i])
		}
		for name, out := range map[string]string{"weir status": status, "weir events": events, "weir doctor": found} {
			if !strings.Contains(out, hand.text) {
				t.Errorf("after ip %s, %s does not say so:\n%s", hand.breaks, name, out)
			}
		}
		if strings.Count(found, hand.text) != 1 {
			t.Errorf("after ip %s, weir doctor does not say so once:\n%s", hand.breaks, found)
		}
	}
	if body := h.scrapes(h.socket); !strings.Contains(body, `weir_problems{kind="host",severity="error"} 3`) {
		t.Error("metrics do not count the problems")
	}
	for _, hand := range hands {
		h.run("ip", strings.Fields(hand.mends)...)
	}
	h.resolvedEverywhere(p, model.ProblemHost)
	p.stop()
}

// An agent examines its host, too.
func TestFailuresOfAnAgentsHostAreShown(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.run("ip", "route", "add", "default", "via", "10.0.0.2")
	h.write("directors: [10.0.0.2]\nservices:\n- {name: web, vip: 203.0.113.1, protocol: tcp, port: 80, mode: nat, backends: [{address: 10.0.0.1}]}\n")
	p := h.startVerb("agent", `msg="agent runs"`)
	problems := func() []model.Problem {
		status, err := api.NewClient(h.socket).AgentStatus(t.Context())
		if err != nil {
			return []model.Problem{{Text: err.Error()}}
		}
		return status.Problems
	}
	p.wait("have no problems", func() bool { return len(problems()) == 0 })
	h.run("ip", "route", "replace", "default", "via", "10.0.0.3")
	h.run("ip", "addr", "add", "10.9.0.1/32", "dev", "lo") // is looked at at once, which a route is not
	const text = "nat route IPv4: replies go by default to 10.0.0.3 on eth0, which is none of directors: nobody translates them back, and all clients time out"
	p.wait("say where replies go", func() bool {
		list := problems()
		return len(list) == 1 && list[0].Kind == model.ProblemHost && list[0].Part == "nat route IPv4" && list[0].Text == text
	})
	h.run("ip", "route", "replace", "default", "via", "10.0.0.2")
	h.run("ip", "addr", "del", "10.9.0.1/32", "dev", "lo")
	p.wait("have no problems any more", func() bool { return len(problems()) == 0 })
	p.stop()
}

// A director knows its health checks by their ports, so it says that NAT of its host turns them
// elsewhere.
func TestTranslatedProbesAreShown(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	listener, err := h.Listen("tcp", "10.0.0.1:8080") // the kernel forgets a refused connection at once
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	h.run("nft", "add table ip turn; add chain ip turn on { type nat hook output priority -100; }; add rule ip turn on ip daddr 10.0.0.2 tcp dport 80 dnat to 10.0.0.1:8080")
	h.write("director: {interfaces: [eth0], store: {directory: " + h.beside("state") + "}}\nservices:\n" +
		"- {name: web, vip: 203.0.113.1, protocol: tcp, port: 80, mode: nat, health: {kind: tcp, interval: 100ms, timeout: 100ms}, backends: [{address: 10.0.0.2}]}\n")
	p := h.start(`msg="director runs"`)
	p.wait("say that its health checks are translated", func() bool {
		h.run("ip", "addr", "replace", "10.9.0.1/32", "dev", "lo") // is looked at at once
		return h.lists(model.ProblemHost, "health checks of web: are translated by this host to other addresses")
	})
	p.stop()
}

// A director that starts before its host has the address by which the group knows it says so, and
// joins the group when the address comes.
func TestAddressInTheGroupComesLater(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	c := etcdlab.New(t, etcdlab.Options{Members: 1, On: h.Do})
	h.write("director: {interfaces: [eth0], group: [10.0.0.7, 10.0.0.8], store: {directory: " + h.beside("state") +
		", etcd: {endpoints: [\"" + strings.Join(c.Endpoints, "\", \"") + "\"], prefix: " + c.Prefix + "}}}\nservices: []\n")
	p := h.start("director runs")
	if got := h.problem(p, model.ProblemHost); got.Part != "group" || got.Text != "group: director.group has no address of this host: fragments stay where they arrive" {
		t.Errorf("the problem is %+v", got)
	}
	h.run("ip", "addr", "add", "10.0.0.7/24", "dev", "eth0")
	p.wait("join the group by its address", func() bool {
		directors, err := api.NewClient(h.socket).Directors(t.Context())
		status := h.statusNow()
		return err == nil && len(directors) == 1 && directors[0].Address.String() == "10.0.0.7" && len(status.Peers) == 1 && status.Peers[0].Director.String() == "10.0.0.8" &&
			!h.lists(model.ProblemHost, "")
	})
	p.stop()
}

// Tunneled packets that come in at an agent's host are lost where its MTU is smaller than that of the
// link, in IPv6 as well.
func TestLoweredMTUOfAnAgentIsShown(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.run("ip", "addr", "add", "fd00::1/64", "dev", "eth0", "nodad")
	h.write("directors: [\"fd00::2\"]\nservices:\n- {name: web, vip: \"2001:db8::1\", protocol: tcp, port: 80, mode: ipip, backends: [{address: \"fd00::1\"}]}\n")
	p := h.startVerb("agent", `msg="agent runs"`)
	problems := func() []model.Problem {
		status, err := api.NewClient(h.socket).AgentStatus(t.Context())
		if err != nil {
			return []model.Problem{{Text: err.Error()}}
		}
		return status.Problems
	}
	p.wait("have no problems", func() bool { return len(problems()) == 0 })
	h.run("ip", "link", "set", "eth0", "mtu", "1400")
	p.wait("say that the MTU has become smaller", func() bool {
		list := problems()
		return len(list) == 1 && list[0].Kind == model.ProblemInterface && list[0].Part == "mtu of eth0" && list[0].Severity == model.SeverityWarning &&
			strings.Contains(list[0].Text, "the MTU of eth0 has become 1400, and was 1500") && strings.Contains(list[0].Fix, "restart weir agent")
	})
	h.run("ip", "link", "set", "eth0", "mtu", "1500")
	p.wait("have no problems any more", func() bool { return len(problems()) == 0 })
	p.stop()
}
