package main

import (
	"fmt"
	"strings"
	"testing"

	"weir.io/weir/internal/model"
	"weir.io/weir/lab/etcdlab"
)

// Directors of a group that have the same address of SNAT, or other settings that must be the same,
// say so, until the files are put right.
func TestSettingsOfTheGroupAreCompared(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	c := etcdlab.New(t, etcdlab.Options{Members: 1, Address: "10.0.0.1", On: h.Do})
	second := *h
	second.Host, second.bpffs = h.backend, h.backend.BPFFS()
	second.socket, second.file = h.beside("second.sock"), h.beside("second.yaml")
	text := func(state, snat, more, backend string) string {
		return fmt.Sprintf("director: {interfaces: [eth0], group: [10.0.0.1, 10.0.0.2], snat: {addresses: [%s]}%s, store: {directory: %s, etcd: {endpoints: [\"%s\"], prefix: %s}}}\nservices:\n"+
			"- {name: web, vip: 203.0.113.1, protocol: tcp, port: 80, mode: nat, snat: true, backends: [{address: %s}]}\n",
			snat, more, h.beside(state), strings.Join(c.Endpoints, "\", \""), c.Prefix, backend)
	}
	h.write(text("state", "10.0.0.9", "", "10.0.0.3"))
	second.write(text("state2", "10.0.0.9", ", flow-port: 7082", "10.0.0.4"))
	p := h.start(`msg="director runs"`)
	q := second.start(`msg="director runs"`)
	say := func(p *process, h *host, other, here, there string) {
		t.Helper()
		for _, words := range []string{
			"director " + other + " has the same director.snat.addresses as this one, 10.0.0.9",
			"director " + other + " has director.flow-port " + there + ", and this one " + here,
			"director " + other + " has other backends or settings for services of its file than this one, such as 203.0.113.1:80/tcp",
		} {
			p.wait("list that "+words, func() bool { return h.lists(model.ProblemGroup, words) })
		}
	}
	say(p, h, "10.0.0.2", "6082", "7082")
	say(q, &second, "10.0.0.1", "7082", "6082")
	second.write(text("state2", "10.0.0.8", "", "10.0.0.3"))
	p.wait("list none of it any more", func() bool { return !h.lists(model.ProblemGroup, "") })
	q.wait("list none of it any more", func() bool { return !second.lists(model.ProblemGroup, "") })
	q.stop()
	p.stop()
}
