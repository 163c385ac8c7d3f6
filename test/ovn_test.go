package test

import (
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"

	"weir.io/weir/internal/model"
	"weir.io/weir/lab/netlab"
	"weir.io/weir/lab/ovnlab"
)

// A cloud with OVN, whose hypervisors have Open vSwitch in user space and a real ovn-controller:
//
//	a, caller --- hv1 --- underlay --- director
//	b, later a -- hv2 ---/          \--- client
//
// The VMs are in a tenant's network, a logical switch. Its logical router has a gateway on hv1, to the underlay, which
// is the provider's network: the client is there.
type cloud struct {
	*testing.T
	u      *underlay
	n      *ovnlab.OVN
	client *netlab.Host
}

const cloudVIP, tenantVIP = "203.0.113.10", "172.16.0.100"

func newCloud(t *testing.T) *cloud {
	t.Helper()
	c := &cloud{T: t, u: newUnderlay(t, "geneve", false), n: ovnlab.New(t, ovnlab.Options{})}
	c.client = c.u.lab.Host("client")
	c.u.plug(c.client, 50)
	c.client.Route(cloudVIP+"/32", lanAddress(directorHost, false).String())
	return c
}

// hypervisor adds one with a number of the underlay.
func (c *cloud) hypervisor(name string, number int) (*netlab.Host, *ovnlab.Host) {
	c.Helper()
	h := c.u.lab.Host(name)
	uplink := c.u.lab.Link(h, c.u.lan, netlab.LinkOptions{XDP: true, MTU: underlayMTU}).A
	h.Sysctl("net.ipv4.conf.all.arp_ignore", "1") // the bridge has the address, and the uplink is the switch's alone
	return h, c.n.Hypervisor(h, name, uplink.Name, fmt.Sprintf("%v/24", lanAddress(number, false)), "geneve")
}

// guest starts a VM on a hypervisor, in the tenant's network.
func (c *cloud) guest(name string, on *netlab.Host, address string, mac net.HardwareAddr) *netlab.Host {
	c.Helper()
	h := c.u.lab.Host(name)
	port := c.u.lab.Link(h, on, netlab.LinkOptions{XDP: true, MTU: underlayMTU - 100, NameB: "tap-" + name}).A
	err := h.Do(func() error {
		link, err := netlink.LinkByName(port.Name)
		if err != nil {
			return err
		}
		return netlink.LinkSetHardwareAddr(link, mac)
	})
	if err != nil {
		c.Fatalf("give %s its MAC address: %v", name, err)
	}
	h.Address(port.Name, address+"/24")
	h.Route("default", "172.16.0.1")
	return h
}

// server starts a guest that answers for the VIP.
func (c *cloud) server(name string, on *netlab.Host, address string, mac net.HardwareAddr) {
	c.Helper()
	h := c.guest(name, on, address, mac)
	h.Address("lo", cloudVIP+"/32", tenantVIP+"/32")
	h.Sysctl("net.ipv4.conf.all.arp_ignore", "1")
	h.Sysctl("net.ipv4.conf.all.arp_announce", "2")
	startNginx(c.T, h)
}

// tenantMAC is a MAC address as OVN's own, of a host of the tenant's network.
func tenantMAC(host byte) net.HardwareAddr { return net.HardwareAddr{0xfa, 0x16, 0x3e, 0, 0, host} }

// port is what ovn-nbctl has to do for a VM's port. It may send and take packets of its own addresses alone, and of
// others as the tenant's cloud allows.
func tenantPort(name string, host byte) []string {
	addresses := fmt.Sprintf("%v 172.16.0.%d", tenantMAC(host), host)
	return []string{"--", "lsp-add", "tenant", name, "--", "lsp-set-addresses", name, addresses, "--", "lsp-set-port-security", name, addresses}
}

// A service whose backends are VMs of a tenant's network in OVN: weir finds them in the Southbound database, clients of
// the provider's network and of the tenant's reach them, and a VM that moves is followed.
func TestBackendsInOVN(t *testing.T) {
	t.Parallel()
	c := newCloud(t)
	one, hv1 := c.hypervisor("hv1", 2)
	two, hv2 := c.hypervisor("hv2", 3)

	// The cloud, as it is without weir.
	c.n.NBctl("ls-add", "tenant", "--", "ls-add", "provider",
		"--", "lsp-add", "provider", "physical", "--", "lsp-set-type", "physical", "localnet", "--", "lsp-set-addresses", "physical", "unknown",
		"--", "lsp-set-options", "physical", "network_name="+ovnlab.Network,
		"--", "lr-add", "router",
		"--", "lrp-add", "router", "router-tenant", tenantMAC(1).String(), "172.16.0.1/24",
		"--", "lsp-add", "tenant", "tenant-router", "--", "lsp-set-type", "tenant-router", "router", "--", "lsp-set-addresses", "tenant-router", "router",
		"--", "lsp-set-options", "tenant-router", "router-port=router-tenant",
		"--", "lrp-add", "router", "router-provider", tenantMAC(0xfe).String(), fmt.Sprintf("%v/24", lanAddress(60, false)),
		"--", "lrp-set-gateway-chassis", "router-provider", "hv1",
		"--", "lsp-add", "provider", "provider-router", "--", "lsp-set-type", "provider-router", "router", "--", "lsp-set-addresses", "provider-router", "router",
		"--", "lsp-set-options", "provider-router", "router-port=router-provider")
	for name, host := range map[string]byte{"a": 11, "b": 12, "caller": 13} {
		c.n.NBctl(tenantPort(name, host)[1:]...)
		c.n.NBctl("acl-add", "tenant", "to-lport", "1000", fmt.Sprintf(`outport == "%s" && ip`, name), "drop")
		c.n.NBctl("acl-add", "tenant", "from-lport", "1001", fmt.Sprintf(`inport == "%s" && ip`, name), "allow-related")
	}
	c.server("a", one, "172.16.0.11", tenantMAC(11))
	c.server("a-moved", two, "172.16.0.11", tenantMAC(11))
	c.server("b", two, "172.16.0.12", tenantMAC(12))
	caller := c.guest("caller", one, "172.16.0.13", tenantMAC(13))
	hv1.PlugAs("tap-a", "a")
	hv2.PlugAs("tap-b", "b")
	hv1.PlugAs("tap-caller", "caller")

	// What weir needs of it.
	director := lanAddress(directorHost, false).String()
	steps := documentedSteps(t, "A cloud with OVN", "ovn-nbctl")
	for _, step := range steps.commands {
		for i := range step {
			step[i] = strings.NewReplacer("192.0.2.200", director, "02:00:00:00:02:00", c.u.port.MAC.String()).Replace(step[i])
		}
		c.n.NBctl(step...)
	}
	d := startDaemon(t, c.u.director, "run", "director: {interfaces: [eth0]}\nservices: []\n")
	d.edit(strings.NewReplacer("192.0.2.200", director, "tcp:192.0.2.5:6642", c.n.SB).Replace(steps.file))
	d.waitFor("wait with its VTEP for a restart", func() bool { return len(problemsOf(d, model.ProblemRestart)) > 0 })
	if s := d.directorStatus(); s.OVN != nil || strings.Contains(c.n.SBctl("--bare", "--columns=name", "list", "Chassis"), "weir-lb1") {
		t.Errorf("a director that is no VTEP yet is a chassis of OVN: %+v", s.OVN)
	}
	d.replace(weir, syscall.SIGTERM)
	d.ready()
	d.waitFor("be a chassis of OVN", func() bool { s := d.directorStatus(); return s.OVN != nil && s.OVN.Registered })
	c.n.NBctl("--timeout=60", "wait-until", "Logical_Switch_Port", "port-of-weir", "up=true")
	c.n.NBctl("--wait=hv", "sync")

	for _, from := range []*netlab.Host{c.client, caller} {
		c.reaches(from, cloudVIP, "a", "b")
	}
	d.waitFor("find the VMs healthy", func() bool {
		services, err := d.services()
		i := slices.IndexFunc(services, func(s model.ServiceStatus) bool { return s.Name == "inside" })
		return err == nil && i >= 0 && services[i].Health != nil && services[i].Health.Up == 2
	})
	c.reaches(caller, tenantVIP, "a", "b")

	// The VM moves: the other hypervisor has its port.
	hv1.Unplug("tap-a")
	hv2.PlugAs("tap-a-moved", "a")
	c.n.NBctl("--wait=hv", "sync")
	d.waitFor("know that the VM has moved", func() bool {
		of := d.segments().Segments[0]
		i := slices.IndexFunc(of.Hosts, func(h model.SegmentHostStatus) bool { return h.Address.String() == "172.16.0.11" })
		return i >= 0 && of.Hosts[i].VTEP == lanAddress(3, false) && of.Hosts[i].Source == model.HostsOfOVN
	})
	for _, from := range []*netlab.Host{c.client, caller} {
		c.reaches(from, cloudVIP, "a-moved", "b")
	}
	c.reaches(caller, tenantVIP, "a-moved", "b")
	if found := d.directorStatus().Problems; len(found) > 0 {
		t.Errorf("there are problems: %+v", found)
	}

	// It leaves OVN with the configuration.
	if names := c.n.SBctl("--bare", "--columns=name", "list", "Chassis"); !strings.Contains(names, "weir-lb1") {
		t.Errorf("OVN's chassis are %s", names)
	}
	d.edit("director: {interfaces: [eth0], vtep: {addresses: [" + director + "]}}\nservices: []\n")
	d.waitFor("leave OVN's chassis", func() bool {
		return !strings.Contains(c.n.SBctl("--bare", "--columns=name", "list", "Chassis"), "weir-lb1")
	})
}

// cloudSteps are what docs/operate/tenants.md says to do.
type cloudSteps struct {
	commands [][]string // arguments of the program that changes the cloud
	file     string     // of the director
}

// documentedSteps reads them, of a section: the test does what a reader does.
func documentedSteps(t *testing.T, title, program string) (s cloudSteps) {
	t.Helper()
	text, err := os.ReadFile("../docs/operate/tenants.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, found := strings.Cut(string(text), "\n## "+title+"\n")
	if !found {
		t.Fatalf("docs/operate/tenants.md has no section %q", title)
	}
	section, _, _ = strings.Cut(section, "\n## ")
	for i, block := range strings.Split(section, "```") {
		language, code, _ := strings.Cut(block, "\n")
		switch {
		case i%2 == 0:
		case language == "yaml":
			if s.file, err = together(s.file, code); err != nil {
				t.Fatal(err)
			}
		case language == "sh":
			for line := range strings.Lines(code) {
				if rest, is := strings.CutPrefix(line, program+" "); is {
					s.commands = append(s.commands, shellWords(strings.TrimSpace(rest)))
				}
			}
		}
	}
	if len(s.commands) < 6 || s.file == "" {
		t.Fatalf("docs/operate/tenants.md is not read as it is written: %+v", s)
	}
	return s
}

// together are two parts of a file: of segments those of the second, of services all.
func together(first, second string) (string, error) {
	if first == "" {
		return second, nil
	}
	before, services, has := strings.Cut(first, "services:\n")
	before, _, _ = strings.Cut(before, "segments:\n")
	segments, more, has2 := strings.Cut(second, "services:\n")
	if !has || !has2 || !strings.HasPrefix(segments, "segments:\n") {
		return "", fmt.Errorf("parts of a file are not as they were:\n%s\n%s", first, second)
	}
	return before + segments + "services:\n" + services + more, nil
}

// shellWords are the words of a command line, some of them in single quotation marks.
func shellWords(line string) (words []string) {
	for i, part := range strings.Split(line, "'") {
		if i%2 == 1 {
			words = append(words, part)
		} else {
			words = append(words, strings.Fields(part)...)
		}
	}
	return words
}

// reaches asks a VIP until each server has answered, and no other does.
func (c *cloud) reaches(from *netlab.Host, vip string, servers ...string) {
	c.Helper()
	seen := map[string]bool{}
	for range 200 {
		out, err := tryOn(c.T, from, "curl", "--silent", "--max-time", "20", "http://"+vip+"/name")
		if err != nil || !slices.Contains(servers, out) {
			c.Fatalf("%s gets %q of %s (%v), want one of %s", from.Name, out, vip, err, strings.Join(servers, ", "))
		}
		if seen[out] = true; len(seen) == len(servers) {
			return
		}
	}
	c.Errorf("%s is answered by %v alone", from.Name, seen)
}
