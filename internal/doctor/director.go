package doctor

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"weir.io/weir/internal/device"
	"weir.io/weir/internal/model"
	"weir.io/weir/internal/privilege"
)

// director examines a director's host.
func (x *examination) director() {
	x.needed(privilege.Run)
	if len(x.config.Director.Interfaces) == 0 {
		x.known("interfaces", "name those that clients' packets come in by", "director.interfaces is empty")
	}
	tagged := x.config.SeesTags()
	for _, name := range x.config.Director.Interfaces {
		link := x.exists(name)
		if link == nil {
			continue
		}
		x.xdp(link, directorProgram)
		x.lro(link)
		if tagged {
			x.rxVLAN(link)
			x.txVLAN(link)
		}
		x.checksum(link)
		x.tunnelRoom(link)
	}
	x.cores()
	x.vtep()
	x.services()
	x.backends()
	x.answers()
	x.probesTranslated()
	x.associations()
	x.programs()
	x.forwarding()
	x.snat()
	x.steering()
	x.fanOut()
	x.group()
	x.flowPort()
	x.memory()
	x.vipsOnInterfaces()
}

// steering checks that the NICs that are to steer flows can.
func (x *examination) steering() {
	s := &x.config.Director.Steering
	for _, name := range s.On(x.config.Director.Interfaces) {
		if x.link(name) == nil {
			continue // the check of interfaces says so
		}
		queues := s.Queues.List()
		table, err := device.NIC(name).Able(queues)
		if errors.Is(err, device.ErrRulesOff) {
			x.ok("steering", "%s: the flow table is off, and weir run switches it on", name)
			continue
		}
		if err != nil {
			x.known("steering", model.SteeringFix, "no flow is steered: %v", err)
			continue
		}
		x.ok("steering", "%s has room for %d rules, %d are taken; queues %v are for flows with rules", name, table.Size, len(table.Locations), s.Queues)
	}
}

// group checks that this host is one of the directors among which fragments are divided.
func (x *examination) group() {
	if len(x.config.Director.Group) == 0 {
		return
	}
	for _, a := range x.config.Director.Group {
		if _, here := x.addresses[a]; here {
			x.ok("group", "has %s, which is this host", a)
			return
		}
	}
	say := x.fail
	if x.config.Director.Neighbor.Given() {
		say = x.known // by what answers ARP and NDP
	}
	say("group", "name this host's address on the link that it shares with the other directors",
		"director.group has no address of this host: fragments stay where they arrive")
}

// forwarding checks what the replies of nat backends need: the kernel's table
// gives no route to what came in where forwarding is off (bpf_fib_lookup).
func (x *examination) forwarding() {
	families := make(map[bool]bool) // by IPv4
	for _, s := range x.config.Services {
		for _, b := range s.Backends {
			if b.ModeIn(s) == model.NAT {
				families[b.Address.Is4()] = true
			}
		}
	}
	for _, f := range []struct {
		is4       bool
		name, key string
	}{{true, "IPv4", "net/ipv4/conf/"}, {false, "IPv6", "net/ipv6/conf/"}} {
		if !families[f.is4] {
			continue
		}
		check, on := "forwarding "+f.name, true
		for _, name := range x.config.Director.Interfaces {
			key := f.key + name + "/forwarding"
			if value, err := readSysctl(key); err == nil && value == "0" {
				x.warn(check, "weir run switches it on; by hand: sysctl -w "+key+"=1",
					"is off on %s: replies of nat backends are not sent on", name)
				on = false
				break
			}
		}
		if on {
			x.ok(check, "is on")
		}
	}
}

// readSysctl reads a setting by its path: an interface's name may have a dot.
func readSysctl(key string) (string, error) {
	text, err := os.ReadFile(filepath.Join("/proc/sys", key))
	if err != nil {
		return "", fmt.Errorf("read sysctl: %w", err)
	}
	return strings.TrimSpace(string(text)), nil
}

// memory checks what rings take against their limit, and the limit against what
// the machine has.
func (x *examination) memory() {
	rings, limit := x.config.RingMemory(), x.config.Director.Limits.RingMemory
	if 2*rings > limit {
		x.warn("ring memory", fmt.Sprintf("director.limits.ring-memory: %d", 2*rings),
			"rings take %s of %s: a change of all services at once does not fit, old rings stay until new ones are in place",
			mib(rings), mib(limit))
	} else {
		x.ok("ring memory", "rings take %s of %s", mib(rings), mib(limit))
	}
	taken := x.config.Director.Limits.RingMemoryTaken()
	if available, err := availableMemory(); err == nil && taken > available {
		x.warn("memory", "lower director.limits.ring-memory", "rings take %s, and %s are available", mib(taken), mib(available))
	}
}

func mib(bytes uint64) string { return fmt.Sprintf("%.1f MiB", float64(bytes)/(1<<20)) }

// availableMemory returns MemAvailable of /proc/meminfo, in bytes.
func availableMemory() (uint64, error) {
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		var kib uint64
		if n, _ := fmt.Sscanf(line, "MemAvailable: %d kB", &kib); n == 1 {
			return kib << 10, nil
		}
	}
	return 0, fmt.Errorf("no MemAvailable in /proc/meminfo")
}
