package main

import (
	"strings"
	"testing"

	"weir.io/weir/internal/api"
	"weir.io/weir/internal/model"
)

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
