package tune

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// threaded looks at whether threads serve the queues (threaded NAPI).
func (s *survey) threaded(n *nic) {
	path := filepath.Join(n.dir, "threaded")
	if n.dir == "" || !exists(path) {
		return
	}
	setting := Setting{Kind: Threaded, Interface: n.name, Identity: n.identity}
	setting.read, setting.write, setting.command = file(path)
	now, err := setting.read()
	if err != nil {
		return
	}
	setting.Now, setting.Want = now, now
	p := Part{Kind: Threaded, Interface: n.name, Text: "softirqs serve the queues, and no threads"}
	loose := 0
	if now != "0" {
		var threads int
		threads, loose = s.threads(n)
		serve := "serve"
		if threads == 1 {
			serve = "serves"
		}
		p.Text = fmt.Sprintf("%s %s the queues (threaded NAPI)", count(threads, "thread"), serve)
		if p.Amiss = loose > 0; p.Amiss {
			p.Text += fmt.Sprintf(", and %d of them may run on any CPU, wherever the queue's interrupt comes", loose)
			p.Fix = "bind each to the CPU of its queue: taskset -cp CPU PID, for the threads napi/" + n.name + "-*; or echo 0 >" + path
		}
	}
	wanted := s.options.Threaded && now == "0"
	losing := s.losing(n, s.cpus.anywhere())
	switch {
	case losing != nil && (wanted || loose > 0):
		p.Amiss = true
		p.Text += fmt.Sprintf("; %s, and threads may run on others", losing.sendsOnly())
		if wanted {
			p.Fix = "do without threads (--threaded), or give " + losing.name + " as many queues as there are CPUs"
		}
	case wanted:
		setting.Want = "1"
	}
	p.Settings = []Setting{setting}
	s.add(p)
}

// threads returns how many threads serve a NIC's queues, and how many of them are bound to no CPU.
func (s *survey) threads(n *nic) (all, loose int) {
	for pid := range s.host.processes() {
		if !strings.HasPrefix(readText(filepath.Join(pid, "comm")), "napi/"+n.name+"-") {
			continue
		}
		all++
		if len(allowedCPUs(pid)) > 1 && len(s.cpus) > 1 {
			loose++
		}
	}
	return all, loose
}

// processes yields the directories of all processes.
func (h *Host) processes() func(yield func(string) bool) {
	dirs, _ := filepath.Glob(filepath.Join(h.Proc, "[0-9]*")) // the pattern is not bad
	return slices.Values(dirs)
}

// allowedCPUs are those on which a process may run.
func allowedCPUs(dir string) []int {
	for line := range strings.Lines(readText(filepath.Join(dir, "status"))) {
		if value, is := strings.CutPrefix(line, "Cpus_allowed_list:"); is {
			return parseList(strings.TrimSpace(value))
		}
	}
	return nil
}

// deferral looks at whether packets wait for a timer (Documentation/networking/napi.rst, software IRQ
// coalescing).
func (s *survey) deferral(n *nic) {
	if n.dir == "" {
		return
	}
	polls := readText(filepath.Join(n.dir, "napi_defer_hard_irqs"))
	timeout, err := strconv.ParseUint(readText(filepath.Join(n.dir, "gro_flush_timeout")), 10, 64)
	if err != nil || timeout == 0 || polls == "" || polls == "0" {
		return
	}
	s.add(Part{Kind: Deferral, Interface: n.name, Amiss: true, Text: fmt.Sprintf("packets wait up to %d ns for a timer instead of an interrupt (napi_defer_hard_irqs %s, gro_flush_timeout)", timeout, polls),
		Fix: "echo 0 >" + filepath.Join(n.dir, "napi_defer_hard_irqs") + ", unless fewer interrupts are worth that time"})
}

// governor looks at who decides the CPUs' frequency.
func (s *survey) governor() {
	p := Part{Kind: Governor}
	var others, policies []string
	for _, c := range s.cpus {
		dir := filepath.Join(s.host.Sys, fmt.Sprintf("devices/system/cpu/cpu%d/cpufreq", c.number))
		if policy, err := filepath.EvalSymlinks(dir); err != nil || slices.Contains(policies, policy) {
			continue // CPUs may share one
		} else {
			policies = append(policies, policy)
		}
		const performance = "performance"
		setting := Setting{Kind: Governor, Of: fmt.Sprintf("cpu%d", c.number)}
		setting.read, setting.write, setting.command = file(filepath.Join(dir, "scaling_governor"))
		now, err := setting.read()
		if err != nil {
			continue
		}
		setting.Now, setting.Want = now, now
		if now != performance && slices.Contains(strings.Fields(readText(filepath.Join(dir, "scaling_available_governors"))), performance) {
			setting.Want = performance
			if !slices.Contains(others, now) {
				others = append(others, now)
			}
		}
		p.Settings = append(p.Settings, setting)
	}
	if len(p.Settings) == 0 {
		return // a virtual machine's CPUs have none
	}
	p.Text = "the CPUs' frequency is not lowered"
	if p.Amiss = len(others) > 0; p.Amiss {
		p.Text = "the CPUs' frequency is lowered while there are few packets: " + strings.Join(others, ", ")
	}
	s.add(p)
}

// busyPolling looks at whether sockets' processes poll NICs, which takes time of the CPUs that forward.
func (s *survey) busyPolling() {
	var on []string
	for _, key := range []string{"busy_poll", "busy_read"} {
		if value := readText(filepath.Join(s.host.Proc, "sys/net/core", key)); value != "" && value != "0" {
			on = append(on, "net.core."+key+"="+value)
		}
	}
	if len(on) == 0 {
		return
	}
	s.add(Part{Kind: BusyPoll, Amiss: true, Text: "processes poll for packets of their sockets, on CPUs that packets need (" + strings.Join(on, ", ") + ")",
		Fix: "sysctl -w net.core.busy_poll=0 net.core.busy_read=0; a director's packets come to no socket"})
}

// numa looks at whether weir runs where the NICs are: BPF maps without a node of their own, as weir's, are
// made on the node where the process runs that makes them.
func (s *survey) numa() {
	if len(s.cpus.nodes()) < 2 {
		return
	}
	node, where := -1, ""
	for _, n := range s.nics {
		switch {
		case n.node < 0:
		case node >= 0 && n.node != node:
			s.add(Part{Kind: NUMA, Text: "the interfaces are on several nodes: maps are far from some of them wherever weir runs"})
			return
		default:
			node, where = n.node, n.name
		}
	}
	if node < 0 {
		return
	}
	var near []int
	for _, c := range s.cpus {
		if c.node == node {
			near = append(near, c.number)
		}
	}
	p := Part{Kind: NUMA, Text: fmt.Sprintf("%s is on node %d, with CPUs %s", where, node, list(near))}
	own, _ := os.Readlink(filepath.Join(s.host.Proc, "thread-self/ns/net")) // not known: not another one
	for pid := range s.host.processes() {
		args := strings.Split(readText(filepath.Join(pid, "cmdline")), "\x00")
		if readText(filepath.Join(pid, "comm")) != "weir" || len(args) < 2 || args[1] != "run" {
			continue
		}
		if theirs, err := os.Readlink(filepath.Join(pid, "ns/net")); err == nil && theirs != own {
			continue
		}
		allowed := allowedCPUs(pid)
		if slices.ContainsFunc(allowed, func(c int) bool { return !slices.Contains(near, c) }) {
			p.Amiss = true
			p.Text += fmt.Sprintf("; weir run (process %s) may run on CPUs %s, and its maps are on the node where it has started", filepath.Base(pid), list(allowed))
			p.Fix = fmt.Sprintf("NUMAPolicy=bind and NUMAMask=%d in its unit, with CPUAffinity=%s, or numactl --cpunodebind=%d --membind=%d weir run; maps that are there move with the next weir detach", node, list(near), node, node)
		}
	}
	s.add(p)
}

// irqbalance looks for the program that moves interrupts.
func (s *survey) irqbalance() {
	if !slices.ContainsFunc(s.nics, func(n *nic) bool { return len(n.served) > 0 }) {
		return
	}
	for pid := range s.host.processes() {
		if readText(filepath.Join(pid, "comm")) == "irqbalance" {
			s.add(Part{Kind: IRQBalance, Amiss: true, Text: fmt.Sprintf("runs (process %s), and may move interrupts to other CPUs", filepath.Base(pid)),
				Fix: "systemctl disable --now irqbalance, or give it --banirq=N for each of the NIC's"})
			return
		}
	}
}
