package agent

import (
	"slices"
	"strings"
	"testing"

	"weir.io/weir/internal/model"
)

// on is the configuration of the packet tables with these interfaces.
func on(interfaces ...string) model.Config {
	c := testConfig()
	c.Agent.Interfaces = interfaces
	return c
}

// uplinks are the interfaces that have the agent's programs, as status has them.
func (k *kept) uplinks(t *testing.T) (names []string) {
	t.Helper()
	for _, i := range k.status(t, k.a).Interfaces {
		names = append(names, i.Name)
	}
	slices.Sort(names)
	return names
}

func (k *kept) wants(t *testing.T, after string, uplinks []string, told ...string) {
	t.Helper()
	if got := k.look(t); !slices.Equal(got, told) {
		t.Errorf("after %s it tells\n%s\nwant\n%s", after, strings.Join(got, "\n"), strings.Join(told, "\n"))
	}
	if got := k.uplinks(t); !slices.Equal(got, uplinks) {
		t.Errorf("after %s the programs are at %v, want %v", after, got, uplinks)
	}
	if got := k.look(t); got != nil {
		t.Errorf("after %s it says it again: %v", after, got)
	}
}

// TestMissingInterfaces: an agent starts with those that are there, says which are not, and
// takes them when they come.
func TestMissingInterfaces(t *testing.T) {
	k := newKept(t, false, on("eth0", "eth1", "eth2"))
	k.wants(t, "the start", []string{"eth0"}, "interfaces waiting: eth1", "interfaces waiting: eth2")
	if p := k.problems(); len(p) != 2 || p[0].What != "eth1" || p[0].State != model.UpkeepWaiting || p[0].Found != "is not there" {
		t.Errorf("status has %+v, want that eth1 and eth2 are not there", p)
	}
	k.ip(t, "link", "add", "eth1", "type", "veth", "peer", "name", "far1")
	k.wants(t, "eth1 has come, and is down", []string{"eth0", "eth1"}, "interfaces waiting: eth1")
	k.ip(t, "link", "set", "eth1", "up")
	k.wants(t, "eth1 is up", []string{"eth0", "eth1"}, "interfaces holds: eth1")
	k.ip(t, "link", "del", "eth1")
	k.wants(t, "eth1 has gone", []string{"eth0"}, "interfaces waiting: eth1")
	k.ip(t, "link", "add", "eth1", "up", "type", "veth", "peer", "name", "far1")
	k.wants(t, "eth1 was made again", []string{"eth0", "eth1"}, "interfaces holds: eth1")
}

// TestNoInterfaceAtAll: an agent starts with nothing, and has all when its interface comes.
func TestNoInterfaceAtAll(t *testing.T) {
	k := newKept(t, false, on("late0"))
	k.wants(t, "the start", nil, "interfaces waiting: late0")
	k.ip(t, "link", "add", "late0", "up", "type", "veth", "peer", "name", "far0")
	k.wants(t, "late0 has come", []string{"late0"}, "interfaces holds: late0")
}

// TestRenamedInterface: a new name does not take the programs from an interface, which a
// service may hang on.
func TestRenamedInterface(t *testing.T) {
	k := newKept(t, false, on("eth0"))
	k.wants(t, "the start", []string{"eth0"})
	k.ip(t, "link", "set", "eth0", "down")
	k.ip(t, "link", "set", "eth0", "name", "net0")
	k.ip(t, "link", "set", "net0", "up")
	k.wants(t, "eth0 is called net0", []string{"net0"}, "interfaces waiting: eth0")
	if p := k.problems(); len(p) != 1 || !strings.Contains(p[0].Found, "stay at net0") {
		t.Errorf("status has %+v, want where the programs are", p)
	}
	if wrong := k.attached(t, hookXDP, "host_xdp"); wrong != "" {
		t.Error(wrong)
	}
	k.ip(t, "link", "property", "add", "dev", "net0", "altname", "eth0")
	k.wants(t, "net0 has the other name, too", []string{"net0"}, "interfaces holds: eth0")
}

// TestDownAndUp: an interface that is down is said to be, and keeps its programs.
func TestDownAndUp(t *testing.T) {
	k := newKept(t, false, on("eth0"))
	k.wants(t, "the start", []string{"eth0"})
	k.ip(t, "link", "set", "eth0", "down")
	k.wants(t, "eth0 is down", []string{"eth0"}, "interfaces waiting: eth0")
	k.ip(t, "link", "set", "eth0", "up")
	k.wants(t, "eth0 is up", []string{"eth0"}, "interfaces holds: eth0")
	for hook, program := range map[string]string{hookXDP: "host_xdp", hookIngress: "host_after_xdp", hookEgress: "host_egress"} {
		if wrong := k.attached(t, hook, program); wrong != "" {
			t.Error(wrong)
		}
	}
}

// TestLostDefaultRoute: where no interface is named, the one that had the default route keeps
// its programs while there is none.
func TestLostDefaultRoute(t *testing.T) {
	c := testConfig()
	c.Services = slices.DeleteFunc(c.Services, func(s model.Service) bool { return s.VIP.Is6() })
	k := newKept(t, false, c)
	k.wants(t, "the start", []string{"eth0"})
	k.ip(t, "addr", "flush", "dev", "eth0")
	k.ip(t, "link", "set", "eth0", "down")
	k.wants(t, "there is no route and no address", []string{"eth0"}, "interfaces waiting: "+noUplink, "interfaces waiting: eth0")
	k.ip(t, "link", "set", "eth0", "up")
	k.ip(t, "addr", "add", host4.String()+"/24", "dev", "eth0")
	k.wants(t, "the address is there again", []string{"eth0"}, "interfaces holds: "+noUplink, "interfaces holds: eth0")
}
