// Package privilege says which of Linux's capabilities weir's processes need and what for, and lets
// a process keep only those. It is one table: the requirements at the start, the kept capabilities,
// doctor's findings and the documents' list are read from it.
package privilege

import (
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"

	"kernel.org/pub/linux/libs/security/libcap/cap"

	"weir.io/weir/internal/model"
)

// Process is one of weir's processes.
type Process string

// The long-running processes, which drop what they do not need.
const (
	Run   Process = "run"   // weir run
	Agent Process = "agent" // weir agent
	BFD   Process = "bfd"   // weir bfd
)

// Need is a capability that a process needs.
type Need struct {
	Process    Process
	Capability string // as capabilities(7) writes it: "CAP_NET_ADMIN"
	For        string // what needs it
	// Optional says that the process works without it, but less well.
	Optional bool

	value cap.Value
	// neededBy returns which of the configuration's keys needs it, "" if none does; nil: every
	// configuration needs it.
	neededBy func(*model.Config) string
	// ifNeeded says that the process keeps it only if its first configuration needs it: it is too
	// powerful to be kept for a later one.
	ifNeeded bool
	// handedOn says that the process has it for another one that it starts, and not for itself.
	handedOn bool
}

// needs are all of them. They were found by taking away one after the other, which
// test/privilege_test.go repeats.
var needs = []Need{
	{Process: Run, value: cap.BPF, For: "programs and maps"},
	{Process: Run, value: cap.NET_ADMIN, For: "XDP on interfaces, next hops, routes, sysctls under /proc/sys/net"},
	{Process: Run, value: cap.PERFMON, For: "programs that compute with pointers, and tracepoints for the CPUs' utilization"},
	{Process: Run, value: cap.NET_RAW, For: "ARP, NDP, ICMP and SYNs that are not the kernel's own", neededBy: rawNeededBy},
	{Process: Run, value: cap.NET_BIND_SERVICE, For: "ports below 1024", neededBy: portNeededBy},
	{Process: Run, value: cap.SYS_NICE, For: "real-time priority of weir bfd", neededBy: bfdNeededBy, Optional: true, handedOn: true},
	{Process: Run, value: cap.IPC_LOCK, For: "keeping weir bfd's memory from being paged out", neededBy: bfdNeededBy, Optional: true, handedOn: true},
	{Process: Run, value: cap.SETUID, For: anotherUser, neededBy: anotherUserNeededBy, ifNeeded: true, Optional: true},
	{Process: Run, value: cap.SETGID, For: anotherUser, neededBy: anotherUserNeededBy, ifNeeded: true, Optional: true},
	{Process: Run, value: cap.KILL, For: anotherUser, neededBy: anotherUserNeededBy, ifNeeded: true, Optional: true},
	{Process: Run, value: cap.SYS_RESOURCE, For: "limiting what programs of checks take that run as another user", neededBy: anotherUserNeededBy, ifNeeded: true, Optional: true},
	{Process: Agent, value: cap.BPF, For: "programs and maps"},
	{Process: Agent, value: cap.NET_ADMIN, For: "programs on interfaces, VIPs on lo, sysctls under /proc/sys/net"},
	{Process: Agent, value: cap.PERFMON, For: "programs that compute with pointers, and read the kernel's sockets"},
	{Process: Agent, value: cap.SYS_ADMIN, For: "entering other network namespaces", neededBy: namespacesNeededBy, ifNeeded: true},
	{Process: BFD, value: cap.SYS_NICE, For: "real-time priority", Optional: true},
	{Process: BFD, value: cap.IPC_LOCK, For: "keeping its memory from being paged out", Optional: true},
}

func init() {
	for i := range needs {
		needs[i].Capability = strings.ToUpper(needs[i].value.String())
	}
}

// Needs returns what a process needs, whatever it is configured to do.
func Needs(p Process) []Need {
	return slices.DeleteFunc(slices.Clone(needs), func(n Need) bool { return n.Process != p })
}

// Missing returns which capabilities of that process, for a configuration, this process lacks. Each
// says what asks for it. A nil configuration asks for what every configuration needs.
func Missing(p Process, c *model.Config) []Need {
	have := cap.GetProc()
	var missing []Need
	for _, n := range Needs(p) {
		if !n.Always() {
			key := n.NeededBy(c)
			if key == "" {
				continue
			}
			n.For = key + ": " + n.For
		}
		if !has(have, n.value) && !(standsFor(n.value) && has(have, cap.SYS_ADMIN)) {
			missing = append(missing, n)
		}
	}
	if p == Run && c != nil {
		missing = append(missing, slices.DeleteFunc(ofHooks(c), func(n Need) bool { return has(have, n.value) })...)
	}
	return missing
}

func has(s *cap.Set, v cap.Value) bool {
	is, err := s.GetFlag(cap.Permitted, v)
	return is && err == nil
}

// standsFor reports whether the kernel takes CAP_SYS_ADMIN in a capability's place: those two
// were parts of it before Linux 5.8, and there are container engines that do not know them.
func standsFor(v cap.Value) bool { return v == cap.BPF || v == cap.PERFMON }

// Always reports whether every configuration needs it.
func (n Need) Always() bool { return n.neededBy == nil }

// NeededBy returns which key of a configuration needs it, "" if none does, or every
// configuration. Nil is one without keys.
func (n Need) NeededBy(c *model.Config) string {
	if n.neededBy == nil || c == nil {
		return ""
	}
	return n.neededBy(c)
}

// String says what is missing, and what for.
func (n Need) String() string { return fmt.Sprintf("%s (%s)", n.Capability, n.For) }

// rawNeededBy returns the key of what sends and receives packets itself. Checks of all kinds ask on links
// which host has a VIP, and those of kind icmp send echo requests; probes of redirection are SYNs.
func rawNeededBy(c *model.Config) string {
	if len(c.Director.Neighbor.Interfaces) > 0 {
		return "director.neighbor"
	}
	for i := range c.BGP.Neighbors {
		if c.BGP.Neighbors[i].Interface != "" {
			return fmt.Sprintf("bgp.neighbors[%d].interface", i)
		}
	}
	for i := range c.Services {
		if c.Services[i].Health != nil {
			return fmt.Sprintf("services[%d].health", i)
		}
		if c.Services[i].ProbesRedirects() {
			return fmt.Sprintf("services[%d].mode", i)
		}
	}
	return ""
}

// portNeededBy returns the key of ports that need a privilege.
func portNeededBy(c *model.Config) string {
	first := firstFreePort()
	if len(c.BGP.Listen) > 0 && model.DefaultBGPPort < first {
		return "bgp.listen"
	}
	for key, list := range map[string][]netip.AddrPort{"api.listen": c.API.Listen, "api.read-only": c.API.ReadOnly} {
		if slices.ContainsFunc(list, func(at netip.AddrPort) bool { return at.Port() < first }) {
			return key
		}
	}
	return ""
}

// firstFreePort returns the first port that needs no privilege in this network namespace.
func firstFreePort() uint16 {
	const usual = 1024
	text, err := os.ReadFile("/proc/sys/net/ipv4/ip_unprivileged_port_start")
	if err != nil {
		return usual
	}
	port, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 16)
	if err != nil {
		return usual
	}
	return uint16(port)
}

// anotherUser is what the programs of checks need of a process of root's, or of one that is to run them as
// another user: to become that user, and to end them.
const anotherUser = "running and ending programs of checks as another user"

// anotherUserNeededBy returns the key of checks that are programs, where these do not run as this process's
// own user.
func anotherUserNeededBy(c *model.Config) string {
	e := c.Director.ExecChecks
	if os.Geteuid() != 0 && (e == nil || e.User == "") {
		return ""
	}
	if e != nil {
		return "director.exec-checks"
	}
	for i := range c.Services {
		if h := c.Services[i].Health; h != nil && h.Kind == model.CheckExec {
			return fmt.Sprintf("services[%d].health.exec", i)
		}
	}
	return ""
}

func bfdNeededBy(c *model.Config) string {
	if c.AsksForBFD() {
		return "bfd"
	}
	return ""
}

// ofHooks are the capabilities that a configuration's hooks get for their programs.
func ofHooks(c *model.Config) []Need {
	var list []Need
	for i := range c.Hooks {
		for j, name := range c.Hooks[i].Capabilities {
			if value, err := cap.FromName(strings.ToLower(name)); err == nil {
				list = append(list, Need{Process: Run, Capability: name, For: fmt.Sprintf("hooks[%d].capabilities[%d]: the hook's program", i, j), Optional: true, value: value})
			}
		}
	}
	return list
}

func namespacesNeededBy(c *model.Config) string {
	if len(c.Agent.Namespaces) > 0 {
		return "agent.namespaces"
	}
	return ""
}

// Environment is the environment of processes that this one starts. It has nothing of the service
// manager's (sd_notify(3)), which hears of this process alone.
func Environment() []string {
	return slices.DeleteFunc(os.Environ(), func(variable string) bool {
		name, _, _ := strings.Cut(variable, "=")
		return slices.Contains([]string{"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"}, name)
	})
}
