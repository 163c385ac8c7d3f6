package main

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"weir.io/weir/internal/api"
	"weir.io/weir/internal/model"
)

// await waits until a director's status meets a condition.
func (h *host) await(claim string, holds func(s *api.Status) bool) {
	h.t.Helper()
	var s api.Status
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(5 * time.Millisecond) { // between two looks
		if s = h.status(); holds(&s) {
			return
		}
	}
	h.t.Fatalf("not seen within %v: %s; interfaces are %+v, problems %+v", patience, claim, s.Interfaces, s.Problems)
}

// A director waits for what its host lacks: status lists it with why, until it comes and is used.
func TestDirectorWaitsForInterfaces(t *testing.T) {
	h := newHost(t)
	h.configure("director: {interfaces: [eth0, eth7]}", "web")
	release := occupy(h, "eth0")
	p := h.start(`msg="director runs"`)
	has := func(part, text string) func(s *api.Status) bool {
		return func(s *api.Status) bool {
			return slices.ContainsFunc(s.Problems, func(p model.Problem) bool {
				return p.Kind == model.ProblemInterface && p.Part == part && p.Severity == model.SeverityError && strings.Contains(p.Text, text)
			})
		}
	}
	h.await("the interface that is not there is a problem", has("eth7", "is not there"))
	h.await("somebody else's program is a problem", has("eth0", "remove it (ip link set dev eth0 xdp off"))
	if code, out, _ := h.doctor("--socket", h.socket); code != 1 || !strings.Contains(out, "director interface") {
		t.Errorf("the exit status of doctor is %d:\n%s", code, out)
	}
	release()
	err := h.Do(func() error {
		err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "eth7", MTU: 1500}, PeerName: "eth8"})
		for _, name := range []string{"eth7", "eth8"} {
			err = errors.Join(err, netlink.LinkSetUp(&netlink.Device{LinkAttrs: netlink.LinkAttrs{Name: name}}))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	h.await("both have the program, and nothing is wrong any more", func(s *api.Status) bool {
		return len(s.Interfaces) == 2 && s.Interfaces[0].XDP != "" && s.Interfaces[1].XDP != "" && len(s.Problems) == 0
	})
	p.stop()
}
