package main

import (
	"errors"
	"net"
	"strings"
	"testing"

	"weir.io/weir/internal/model"
	"weir.io/weir/lab/etcdlab"
)

// Some failures that doctor finds are not examined again while a director runs. They are problems
// of another kind until they are over: strangers on the ports of flows and of BFD, and an etcd that
// does not answer.
func TestStrangersOnPortsAndALostEtcdAreProblems(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	c := etcdlab.New(t, etcdlab.Options{Members: 1, On: h.Do})
	h.write("director: {interfaces: [eth0], group: [10.0.0.1, 10.0.0.8], store: {directory: " + h.beside("state") +
		", etcd: {endpoints: [\"" + strings.Join(c.Endpoints, "\", \"") + "\"], prefix: " + c.Prefix + "}}}\n" +
		"bgp: {asn: 64512, router-id: 10.0.0.1, neighbors: [{address: 10.0.0.2, asn: 64513, bfd: {}}]}\nservices: []\n")
	var flows net.Listener
	var packets net.PacketConn
	h.onHost(func() (err error) {
		flows, err = net.Listen("tcp4", ":6082")
		var other error
		packets, other = net.ListenPacket("udp4", ":3784")
		return errors.Join(err, other)
	})
	p := h.start("director runs")
	strangers := []struct {
		kind model.ProblemKind
		text string
	}{{model.ProblemGroup, ":6082"}, {model.ProblemBFD, "UDP port 3784 is another process's"}}
	for _, s := range strangers {
		p.wait("list the stranger at "+s.text, func() bool { return h.lists(s.kind, s.text) })
	}
	if err := errors.Join(flows.Close(), packets.Close()); err != nil {
		t.Fatal(err)
	}
	for _, s := range strangers {
		p.wait("see that nobody is at "+s.text, func() bool { return !h.lists(s.kind, s.text) })
	}
	c.Kill(0)
	p.wait("list that etcd does not answer", func() bool { return h.lists(model.ProblemGroup, "etcd") })
	c.Start(0)
	p.wait("see that etcd answers", func() bool { return !h.lists(model.ProblemGroup, "etcd") })
	h.stopWithBFD(p)
}
