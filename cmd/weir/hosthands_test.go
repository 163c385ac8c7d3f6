package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"

	"weir.io/weir/internal/api"
	"weir.io/weir/internal/bfd"
	"weir.io/weir/internal/model"
)

// onHost runs something in the host's network, or fails.
func (h *host) onHost(f func() error) {
	h.t.Helper()
	if err := h.Do(f); err != nil {
		h.t.Fatal(err)
	}
}

// run runs a command on the host.
func (h *host) run(name string, args ...string) {
	h.t.Helper()
	h.onHost(func() error {
		if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
			return fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, out)
		}
		return nil
	})
}

// repairs is how often a part was repaired.
func repairs(s *api.Status, part string) uint64 {
	for _, p := range s.Upkeep {
		if p.Part == part {
			return p.Repairs
		}
	}
	return 0
}

// heard are the texts of a part's upkeep events.
func (h *host) heard(part string) (texts []string) {
	h.t.Helper()
	out, err := h.weir("events", "-o", "json", "--socket", h.socket).Output()
	if err != nil {
		h.t.Fatal(err)
	}
	var events []api.Event
	if err := json.Unmarshal(out, &events); err != nil {
		h.t.Fatal(err)
	}
	for _, e := range events {
		if e.Kind == api.EventUpkeep && e.Part == part {
			texts = append(texts, e.Text)
		}
	}
	return texts
}

// hostHand damages a part of a director's host.
type hostHand struct {
	part  string
	touch func()
}

// repairedHands are those whose damage is repaired, on a host that announces nothing.
func repairedHands(h *host) []hostHand {
	pins := filepath.Join(h.bpffs, "weir")
	return []hostHand{
		{"xdp", func() {
			h.onHost(func() error {
				l, err := link.LoadPinnedLink(pins+"/xdp-eth0", nil)
				if err != nil {
					return err
				}
				return errors.Join(l.Detach(), l.Close())
			})
		}},
		{"tc", func() { h.onHost(func() error { return os.Remove(pins + "/undo-eth0") }) }},
		{"pins", func() { h.onHost(func() error { return removeAtOnce(pins + "/state") }) }},
		{"tables", func() { h.onHost(func() error { return loseEntry(pins + "/maps-*/services4") }) }},
		{"sysctls", h.stopForwarding},
		{"checks", func() { h.run("ip", "rule", "del", "pref", "1") }},
		{"state", func() { h.onHost(func() error { return removeAtOnce(h.beside("state")) }) }},
		{"socket", func() { h.onHost(func() error { return os.Remove(h.socket) }) }},
	}
}

// loseEntry removes an entry of a pinned map.
func loseEntry(pattern string) error {
	paths, err := filepath.Glob(pattern)
	if err != nil || len(paths) != 1 {
		return fmt.Errorf("%v are pinned (%w)", paths, err)
	}
	m, err := ebpf.LoadPinnedMap(paths[0], nil)
	if err != nil {
		return err
	}
	var key []byte
	if err = m.NextKey(nil, &key); err == nil {
		err = m.Delete(key)
	}
	return errors.Join(err, m.Close())
}

func (h *host) stopForwarding() {
	h.onHost(func() error { return os.WriteFile("/proc/sys/net/ipv4/conf/eth0/forwarding", []byte("0"), 0) })
}

// TestHandsOnTheHost damages each part of a director's host, as soon as it answers and twice in a
// row: each damage is repaired, and told once. A third damage to the same part is repaired too, a
// fourth is not.
func TestHandsOnTheHost(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	text := "director: {interfaces: [eth0], store: {directory: " + h.beside("state") + "}, snat: {addresses: [10.0.0.1], ports: 20000-29999}}\nservices:\n" +
		"- {name: web, vip: 203.0.113.1, protocol: tcp, port: 80, mode: nat, snat: true, backends: [{address: 10.0.0.2}]}\n" +
		"- {name: far, vip: 203.0.113.2, protocol: tcp, port: 80, mode: l2dsr, backends: [{address: 10.0.0.2}], health: {kind: tcp, interval: 1s}}\n"
	if err := os.WriteFile(h.file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	p := h.start(`msg="director runs"`)
	pins := filepath.Join(h.bpffs, "weir")
	for _, hand := range repairedHands(h) {
		for n := range uint64(2) {
			hand.touch()
			h.awaitAnswer("part "+hand.part+" is repaired", func(s *api.Status) bool { return repairs(s, hand.part) == n+1 && len(s.Problems) == 0 })
		}
		if texts := h.heard(hand.part); len(texts) != 2 || !strings.Contains(texts[0], "repaired") {
			t.Errorf("events of part %s are %q, want two that say that it was repaired", hand.part, texts)
		}
	}
	// All pins at once, and the interface.
	h.onHost(func() error { return removeAtOnce(pins) })
	h.awaitAnswer("all pins are there again", func(s *api.Status) bool {
		_, err := os.Stat(pins + "/xdp-eth0")
		_, other := os.Stat(pins + "/undo-eth0")
		return err == nil && other == nil && len(s.Problems) == 0
	})
	h.stopForwarding()
	h.awaitAnswer("a third hand is repaired", func(s *api.Status) bool { return repairs(s, "sysctls") == 3 })
	h.stopForwarding()
	h.awaitAnswer("a fourth hand is left alone, and said", func(s *api.Status) bool {
		return len(s.Problems) == 1 && s.Problems[0].Kind == model.ProblemHost && strings.Contains(s.Problems[0].Text, "somebody changes it back")
	})
	if code, out, _ := h.doctor("--socket", h.socket); code != 1 || !strings.Contains(out, "somebody changes it back") {
		t.Errorf("the exit status of doctor is %d:\n%s", code, out)
	}
	h.run("ip", "link", "set", "eth0", "down")
	h.awaitAnswer("an interface that is down is waited for", func(s *api.Status) bool {
		return len(s.Problems) > 1 && s.Problems[0].Kind == model.ProblemInterface || len(s.Problems) > 1 && s.Problems[1].Kind == model.ProblemInterface
	})
	p.stop()
}

// awaitAnswer is await of a director that may not answer for a while.
func (h *host) awaitAnswer(claim string, holds func(s *api.Status) bool) {
	h.t.Helper()
	var s api.Status
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(5 * time.Millisecond) { // between two looks
		out, err := h.weir("status", "--alive", "-o", "json", "--socket", h.socket).Output()
		if err == nil && json.Unmarshal(out, &s) == nil && holds(&s) {
			return
		}
	}
	h.t.Fatalf("not seen within %v: %s; upkeep is %+v, problems %+v", patience, claim, s.Upkeep, s.Problems)
}

// bfdProcess waits until the BFD process has sessions of the director, which then knows the process,
// and returns its number. A process that ends before is not replaced: its start has failed.
func (h *host) bfdProcess() (pid int) {
	h.t.Helper()
	h.awaitAnswer("the BFD process has sessions", func(*api.Status) bool {
		status, err := bfd.Query(h.t.Context(), bfd.Socket(h.socket))
		pid = status.PID
		return err == nil && len(status.Sessions) > 0
	})
	return pid
}

// announcingHands damage the parts by which a director is known, and sends what XDP cannot.
func announcingHands(h *host) []hostHand {
	return []hostHand{
		{"bfd", func() {
			if err := syscall.Kill(h.bfdProcess(), syscall.SIGKILL); err != nil {
				h.t.Fatal(err)
			}
		}},
		{"onward", func() {
			h.onHost(func() error {
				links, err := netlink.LinkList()
				for _, l := range links {
					if name := l.Attrs().Name; strings.HasPrefix(name, "weirout") {
						return netlink.LinkDel(l)
					}
				}
				return errors.Join(err, errors.New("there is no such device"))
			})
		}},
	}
}

// waitedParts are those that a director cannot repair: it uses what comes back. For the lock see
// TestStrangerHasTheNameOfTheLock.
var waitedParts = []string{"interfaces", "vips", "lock"}

// TestHandsOnAnnouncing damages the process and the device that TestHandsOnTheHost lacks, and takes
// away the only interface, as soon as the director answers and twice in a row.
func TestHandsOnAnnouncing(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	for _, command := range []string{"link add br0 type bridge", "link set br0 up", "link add port0 up master br0 type veth peer name port1", "link set port1 up",
		"addr add 10.5.0.1/24 dev br0", "neigh add 10.5.0.2 lladdr 02:00:00:00:05:02 dev br0"} {
		h.run("ip", strings.Fields(command)...)
	}
	h.write("director: {interfaces: [eth0], store: {directory: " + h.beside("state") + "}, snat: {addresses: [10.5.0.1], ports: 20000-29999}}\n" +
		"bgp: {asn: 64512, router-id: 10.0.0.1, neighbors: [{address: 10.0.0.2, asn: 64513, bfd: {}}]}\n" +
		"services: [{name: web, vip: 203.0.113.1, protocol: tcp, port: 80, mode: nat, snat: true, backends: [{address: 10.5.0.2}]}]\n")
	p := h.start(`msg="director runs"`)
	h.bfdProcess()
	for _, hand := range announcingHands(h) {
		for n := range uint64(2) {
			hand.touch()
			h.awaitAnswer("part "+hand.part+" is repaired", func(s *api.Status) bool { return repairs(s, hand.part) == n+1 })
		}
		if texts := h.heard(hand.part); len(texts) != 2 || !strings.Contains(texts[0], "repaired") {
			t.Errorf("events of part %s are %q, want two that say that it was repaired", hand.part, texts)
		}
	}
	waits := func(words string) func(s *api.Status) bool {
		return func(s *api.Status) bool {
			return slices.ContainsFunc(s.Problems, func(p model.Problem) bool { return strings.Contains(p.Text, words) })
		}
	}
	for range 2 {
		h.run("ip", "link", "set", "eth0", "down")
		h.awaitAnswer("an interface that is down is waited for", waits("eth0 is down"))
		h.run("ip", "link", "set", "eth0", "up")
		h.awaitAnswer("an interface that is up again is used", func(s *api.Status) bool { return !waits("eth0 is down")(s) })
		h.run("ip", "link", "del", "eth0")
		h.awaitAnswer("nothing is announced without an interface", waits("are not announced"))
		h.run("ip", "link", "add", "eth0", "up", "type", "veth", "peer", "name", "far0")
		h.run("ip", "link", "set", "far0", "up")
		h.awaitAnswer("all is announced with one", func(s *api.Status) bool { return !waits("are not announced")(s) })
	}
	h.refusesToDetach(p)
	h.stopWithBFD(p)
}

// refusesToDetach has a director that does not answer detached: that is refused, and changes nothing.
func (h *host) refusesToDetach(p *process) {
	h.t.Helper()
	send := func(signal syscall.Signal) {
		if err := p.cmd.Process.Signal(signal); err != nil {
			h.t.Fatal(err)
		}
	}
	before, err := bfd.Query(h.t.Context(), bfd.Socket(h.socket))
	if err != nil {
		h.t.Fatal(err)
	}
	send(syscall.SIGSTOP)
	defer send(syscall.SIGCONT)
	pins := filepath.Join(h.bpffs, "weir")
	got := h.fails("detach", "--bpffs", h.bpffs, "--socket", h.socket)
	if !strings.Contains(got, fmt.Sprintf("process %d (", p.cmd.Process.Pid)) || !strings.Contains(got, "pin directory "+pins) {
		h.t.Errorf("detaching under a director that does not answer ends with %q", got)
	}
	if after, err := bfd.Query(h.t.Context(), bfd.Socket(h.socket)); err != nil || after.PID != before.PID {
		h.t.Errorf("the process of BFD is not there any more: %v", err)
	}
}

// stopWithBFD stops a director, and then the BFD process that outlives it and has its log open.
func (h *host) stopWithBFD(p *process) {
	h.t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		h.t.Fatal(err)
	}
	p.wait("end", func() bool { _, err := os.Stat(h.socket); return os.IsNotExist(err) })
	if err := bfd.Stop(bfd.Socket(h.socket)); err != nil {
		h.t.Fatal(err)
	}
	<-p.ended
}

// Each part that docs/operate/upkeep.md lists for directors has a hand here, and no other.
func TestEveryPartHasAHand(t *testing.T) {
	page, err := os.ReadFile("../../docs/operate/upkeep.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, found := strings.Cut(string(page), "## Parts of a director's host")
	if !found {
		t.Fatal("docs/operate/upkeep.md has no such table")
	}
	var documented []string
	for _, row := range regexp.MustCompile("(?m)^\\| `([a-z]+)` \\|").FindAllStringSubmatch(table, -1) {
		documented = append(documented, row[1])
	}
	tried := slices.Clone(waitedParts)
	for _, hand := range slices.Concat(repairedHands(&host{}), announcingHands(&host{})) {
		tried = append(tried, hand.part)
	}
	slices.Sort(documented)
	slices.Sort(tried)
	if !slices.Equal(documented, tried) {
		t.Errorf("documented are %v, tried %v", documented, tried)
	}
}

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

// A director whose program was replaced while it runs, as an upgrade does before the restart, or
// removed, starts its BFD process again, from its own running program.
func TestBFDProcessOfAReplacedProgram(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	binary := h.beside("weir")
	if err := os.WriteFile(binary, self, 0o755); err != nil {
		t.Fatal(err)
	}
	h.configure("director: {interfaces: [eth0], store: {directory: "+h.beside("state")+"}}\nbfd: {neighbors: [{address: 10.0.0.2}]}", "web")
	h.binary = binary
	p := h.start("director runs")
	h.binary = ""
	for n, change := range []func() error{
		func() error {
			other := h.beside("other")
			if err := os.WriteFile(other, []byte("#!/bin/sh\nexit 1\n"), 0o755); err != nil {
				return err
			}
			return os.Rename(other, binary)
		},
		func() error { return os.Remove(binary) },
	} {
		pid := h.bfdProcess()
		if err := change(); err != nil {
			t.Fatal(err)
		}
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		h.awaitAnswer("the BFD process is started again", func(s *api.Status) bool { return repairs(s, "bfd") == uint64(n+1) })
		if now := h.bfdProcess(); now == pid {
			t.Errorf("process %d was killed, and is said to answer", pid)
		}
	}
	h.stopWithBFD(p)
}

// removeAtOnce removes a directory before the director can repair a part of it.
func removeAtOnce(directory string) error {
	aside := directory + "-aside"
	return errors.Join(os.Rename(directory, aside), os.RemoveAll(aside))
}
