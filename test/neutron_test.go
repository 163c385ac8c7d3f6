package test

import (
	"fmt"
	"maps"
	"net"
	"os"
	"slices"
	"strings"
	"testing"

	"weir.io/weir/internal/model"
	"weir.io/weir/lab/netlab"
	"weir.io/weir/lab/neutronlab"
	"weir.io/weir/lab/ovnlab"
)

// neutronVenv names the environment variable of the directory with Neutron's programs.
const neutronVenv = "WEIR_NEUTRON"

// neutronCloud is the cloud of ovn_test.go, of which a real Neutron writes the Northbound database.
type neutronCloud struct {
	*cloud
	neutron  *neutronlab.Neutron
	ids      map[string]string // of Neutron's objects, by their names
	one, two *netlab.Host      // the hypervisors
	hv1, hv2 *ovnlab.Host      // what they are for OVN
	caller   *netlab.Host      // a VM that asks
	d        *daemon           // the director
	floating string            // IP of the VIP
}

// object is one of Neutron's, or a part of one.
type object = map[string]any

// create makes an object of a name.
func (c *neutronCloud) create(collection, kind, name string, o object) (id string) {
	c.Helper()
	o["name"] = name
	id = c.neutron.Create(collection, object{kind: o})
	c.ids[name] = id
	return id
}

// newNeutronCloud makes a cloud with an external network and a tenant's.
func newNeutronCloud(t *testing.T, venv string) *neutronCloud {
	t.Helper()
	c := &neutronCloud{cloud: newCloud(t), ids: map[string]string{}}
	c.one, c.hv1 = c.hypervisor("hv1", 2)
	c.two, c.hv2 = c.hypervisor("hv2", 3)
	c.hv1.Vsctl("set", "Open_vSwitch", ".", "external_ids:ovn-cms-options=enable-chassis-as-gw") // Neutron has the router's gateway there
	c.neutron = neutronlab.New(t, venv, c.n)
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(c.n.NBctl("show"), c.n.SBctl("show"), c.neutron.Log())
		}
	})
	provider := c.create("networks", "network", "provider", object{"router:external": true, "provider:network_type": "flat", "provider:physical_network": ovnlab.Network})
	c.create("subnets", "subnet", "provider-subnet", object{"network_id": provider, "ip_version": 4, "cidr": lanPrefix(false).Masked(), "gateway_ip": nil, "enable_dhcp": false,
		"allocation_pools": []object{{"start": lanAddress(60, false), "end": lanAddress(69, false)}}})
	tenant := c.create("networks", "network", "tenant", object{"provider:network_type": "geneve"})
	subnet := c.create("subnets", "subnet", "tenant-subnet", object{"network_id": tenant, "ip_version": 4, "cidr": "172.16.0.0/24"})
	c.create("subnets", "subnet", "tenant-subnet6", object{"network_id": tenant, "ip_version": 6, "cidr": "fd00:16::/64"})
	router := c.create("routers", "router", "router", object{"external_gateway_info": object{"network_id": provider}})
	c.neutron.Update("routers/"+router+"/add_router_interface", object{"subnet_id": subnet})
	c.create("security-groups", "security_group", "web", object{})
	return c
}

// vm makes a port for a VM on a hypervisor, as Nova does, and returns its MAC address. Its IPv6 address ends as the other.
func (c *neutronCloud) vm(name, address, host string, more ...object) net.HardwareAddr {
	c.Helper()
	port := object{"network_id": c.ids["tenant"], "fixed_ips": []object{{"ip_address": address}, {"ip_address": six(address)}},
		"security_groups": []string{c.ids["web"]}, "device_owner": "compute:nova", "device_id": "vm-" + name, "binding:host_id": host}
	for _, o := range more {
		maps.Copy(port, o)
	}
	c.create("ports", "port", name, port)
	mac, err := net.ParseMAC(c.port(name).MAC)
	if err != nil {
		c.Fatal(err)
	}
	return mac
}

// six is the IPv6 address of the VM that has an address.
func six(address string) string { return "fd00:16::" + address[strings.LastIndex(address, ".")+1:] }

// neutronPort is what Neutron says of a port.
type neutronPort struct {
	MAC    string `json:"mac_address"`
	Host   string `json:"binding:host_id"`
	Status string `json:"status"`
	VIF    struct {
		Parent string `json:"parent_hostname"` // of a virtual port: the host that has one of the ports that may have its address
	} `json:"binding:vif_details"`
}

// port asks Neutron for one.
func (c *neutronCloud) port(name string) neutronPort {
	c.Helper()
	var answer struct{ Port neutronPort }
	c.neutron.Get("ports/"+c.ids[name], &answer)
	return answer.Port
}

// find notes the IDs of ports that a step of the documents has made.
func (c *neutronCloud) find(names ...string) {
	c.Helper()
	for _, name := range names {
		var answer struct {
			Ports []struct{ ID string }
		}
		c.neutron.Get("ports?name="+name, &answer)
		if len(answer.Ports) != 1 {
			c.Fatalf("Neutron has %d ports %s", len(answer.Ports), name)
		}
		c.ids[name] = answer.Ports[0].ID
	}
}

// active waits until Neutron knows that ports are on these hosts, and work.
func (c *neutronCloud) active(host string, names ...string) {
	c.Helper()
	for _, name := range names {
		waitFor(c.T, fmt.Sprintf("Neutron to have port %s active on %s", name, host), func() bool {
			p := c.port(name)
			return p.Status == "ACTIVE" && p.Host == host
		})
	}
}

// key is the number that OVN has given a row of its Southbound database.
func (c *neutronCloud) key(table, condition string) (key uint32) {
	c.Helper()
	text := c.n.SBctl("--bare", "--columns=tunnel_key", "find", table, condition)
	if _, err := fmt.Sscan(text, &key); err != nil {
		c.Fatalf("the tunnel_key of %s %s is %q", table, condition, text)
	}
	return key
}

// knows waits until the director says of a port's addresses what Neutron and OVN say.
func (c *neutronCloud) knows(name, address, hypervisor string) {
	c.Helper()
	p, vtep := c.port(name), lanAddress(map[string]int{"hv1": 2, "hv2": 3}[hypervisor], false)
	if p.Host != hypervisor {
		c.Errorf("Neutron has port %s on %q, not on %s", name, p.Host, hypervisor)
	}
	vni := c.key("Datapath_Binding", "external_ids:name=neutron-"+c.ids["tenant"])
	key := c.key("Port_Binding", "logical_port="+c.ids[name])
	for _, address := range []string{address, six(address)} {
		want := fmt.Sprintf("%s at %s by %v, VNI %d, options 0102:80:%08x, from ovn", address, p.MAC, vtep, vni, key)
		c.d.waitFor("know "+want, func() bool {
			return slices.ContainsFunc(c.d.segments().Segments[0].Hosts, func(h model.SegmentHostStatus) bool {
				return want == fmt.Sprintf("%v at %v by %v, VNI %d, options %v, from %v", h.Address, h.MAC, h.VTEP, h.VNI, h.Options, h.Source)
			})
		})
	}
}

// guests starts the VMs, as they are without weir.
func (c *neutronCloud) guests() {
	c.Helper()
	mac := c.vm("a", "172.16.0.11", "hv1")
	c.server("a", c.one, "172.16.0.11", mac)
	c.server("a-moved", c.two, "172.16.0.11", mac)
	c.server("b", c.two, "172.16.0.12", c.vm("b", "172.16.0.12", "hv2"))
	c.caller = c.guest("caller", c.one, "172.16.0.13", c.vm("caller", "172.16.0.13", "hv1"))
	c.hv1.PlugAs("tap-a", c.ids["a"])
	c.hv1.PlugAs("tap-caller", c.ids["caller"])
	c.hv2.PlugAs("tap-b", c.ids["b"])
	// Two ports that are no usual ones in OVN: Neutron writes "unknown" among the addresses of the first, and a MAC address
	// without IP addresses among those of the second.
	c.vm("open", "172.16.0.14", "hv2", object{"port_security_enabled": false, "security_groups": []string{}})
	c.vm("vrrp", "172.16.0.15", "hv2", object{"allowed_address_pairs": []object{{"ip_address": "172.16.0.50", "mac_address": "00:00:5e:00:01:05"}}})
	for _, name := range []string{"open", "vrrp"} {
		c.hv2.Vsctl("add-port", "br-int", "tap-"+name, "--", "set", "Interface", "tap-"+name, "type=internal", "external_ids:iface-id="+c.ids[name])
	}
	c.active("hv1", "a", "caller")
	c.active("hv2", "b", "open", "vrrp")
}

// follow does what the documents say, and returns the director's file.
func (c *neutronCloud) follow(director, host string) (file string) {
	c.Helper()
	steps := documentedSteps(c.T, "A cloud with Neutron", "openstack")
	for _, step := range steps.commands {
		for i, word := range step {
			step[i] = strings.ReplaceAll(word, "192.0.2.200", director)
			if word == "lb1" {
				step[i] = host
			}
		}
		c.neutron.OpenStack(step...)
	}
	c.find("port-of-weir", "vip", "vip-nat")
	var fips struct {
		FloatingIPs []struct {
			Address string `json:"floating_ip_address"`
		} `json:"floatingips"`
	}
	c.neutron.Get("floatingips", &fips)
	if len(fips.FloatingIPs) != 1 {
		c.Fatalf("the steps make %d floating IPs", len(fips.FloatingIPs))
	}
	c.floating = fips.FloatingIPs[0].Address
	file = strings.NewReplacer("192.0.2.200", director, "tcp:192.0.2.5:6642", c.n.SB, "9f2d7c0e-52a1-4b0e-8d0c-3a6f1e5b7c44", c.ids["tenant"]).Replace(steps.file)
	c.d = startDaemon(c.T, c.u.director, "run", file)
	c.d.waitFor("be a chassis of OVN", func() bool { s := c.d.directorStatus(); return s.OVN != nil && s.OVN.Registered })
	for _, name := range []string{"port-of-weir", "vip", "vip-nat"} {
		c.n.NBctl("--timeout=60", "wait-until", "Logical_Switch_Port", c.ids[name], "up=true")
	}
	return file
}

// natVIP is the documents' VIP of full NAT.
const natVIP = "172.16.0.101"

// works fails unless these servers are all that answer, and are healthy.
func (c *neutronCloud) works(servers ...string) {
	c.Helper()
	c.n.NBctl("--wait=hv", "sync")
	c.d.waitFor(fmt.Sprintf("find %d VMs healthy", len(servers)), func() bool {
		services, err := c.d.services()
		return err == nil && !slices.ContainsFunc(services, func(s model.ServiceStatus) bool { return s.Health != nil && s.Health.Up != len(servers) })
	})
	for _, vip := range []string{cloudVIP, tenantVIP, natVIP} {
		c.reaches(c.caller, vip, servers...)
	}
	for _, vip := range []string{cloudVIP, c.floating} {
		c.reaches(c.client, vip, servers...)
	}
}

// A service whose backends are VMs of a cloud with Neutron, by the steps of the documents: the director finds the ports
// that Neutron made, VMs and clients outside reach the VIPs, also by a floating IP, and a VM that moves is followed.
func TestBackendsInNeutron(t *testing.T) {
	venv := os.Getenv(neutronVenv)
	if venv == "" {
		t.Skip("needs Neutron in $" + neutronVenv + ": make test-neutron installs it")
	}
	t.Parallel()
	c := newNeutronCloud(t, venv)
	c.guests()
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	director := lanAddress(directorHost, false).String()
	file := c.follow(director, host)

	c.knows("a", "172.16.0.11", "hv1")
	c.knows("b", "172.16.0.12", "hv2")
	c.knows("caller", "172.16.0.13", "hv1")
	c.knows("open", "172.16.0.14", "hv2")
	c.knows("vrrp", "172.16.0.15", "hv2")
	c.works("a", "b")
	for _, name := range []string{"vip", "vip-nat"} {
		waitFor(t, "Neutron to have "+name+" at the director", func() bool { return c.port(name).VIF.Parent == host })
	}
	c.move()
	if found := c.d.directorStatus().Problems; len(found) > 0 {
		t.Errorf("there are problems: %+v", found)
	}
	c.allowDirector()
	c.translate(director, file)

	// Neutron deletes a VM's port: the backend has no host any more.
	c.neutron.Delete("ports/" + c.ids["b"])
	c.d.waitFor("forget the host", func() bool {
		return !slices.ContainsFunc(c.d.segments().Segments[0].Hosts, func(h model.SegmentHostStatus) bool { return h.Address.String() == "172.16.0.12" })
	})
	c.d.waitFor("say that the backend is on no host", func() bool {
		return c.d.hasProblem(model.ProblemBackend, "OVN has no port with this address on a host in network "+c.ids["tenant"])
	})
	c.works("a")

	// The director leaves the cloud with its configuration.
	c.d.edit("director: {interfaces: [eth0], vtep: {addresses: [" + director + "]}}\nservices: []\n")
	c.d.waitFor("leave OVN's chassis", func() bool {
		return !strings.Contains(c.n.SBctl("--bare", "--columns=name", "list", "Chassis"), "weir-lb1")
	})
	for _, name := range []string{"vip", "vip-nat"} {
		waitFor(t, "Neutron to have "+name+" nowhere", func() bool { return c.port(name).VIF.Parent == "" })
	}
}

// move moves a VM to the other hypervisor and back, and the director follows.
func (c *neutronCloud) move() {
	c.Helper()
	a := "ports/" + c.ids["a"]
	// As Nova does while the VM runs: both hypervisors have its port, and then the other one.
	c.neutron.Create(a+"/bindings", object{"binding": object{"host": "hv2"}})
	c.neutron.Update(a, object{"port": object{"binding:profile": object{"migrating_to": "hv2"}}})
	c.hv2.PlugAs("tap-a-moved", c.ids["a"])
	c.n.SBctl("--timeout=60", "wait-until", "Port_Binding", c.ids["a"], "additional_chassis!=[]")
	c.knows("a", "172.16.0.11", "hv1")
	c.reaches(c.caller, cloudVIP, "a", "b")
	c.neutron.Update(a+"/bindings/hv2/activate", nil)
	c.hv1.Unplug("tap-a")
	c.neutron.Delete(a + "/bindings/hv1")
	c.active("hv2", "a")
	c.knows("a", "172.16.0.11", "hv2")
	c.works("a-moved", "b")

	// Back after it was stopped: Neutron is told so, and the hypervisor has its port.
	c.neutron.Update(a, object{"port": object{"binding:host_id": "hv1", "binding:profile": object{}}})
	c.hv2.Unplug("tap-a-moved")
	c.hv1.PlugAs("tap-a", c.ids["a"])
	c.active("hv1", "a")
	c.knows("a", "172.16.0.11", "hv1")
	c.works("a", "b")
}

// allowDirector lets a member's port have an address of the director's port: with its next change Neutron makes that one
// virtual. The director says so for as long as it is.
func (c *neutronCloud) allowDirector() {
	c.Helper()
	allow := func(addresses ...string) {
		c.Helper()
		pairs := []object{}
		for _, address := range addresses {
			pairs = append(pairs, object{"ip_address": address})
		}
		c.neutron.Update("ports/"+c.ids["a"], object{"port": object{"allowed_address_pairs": pairs}})
		c.neutron.Update("ports/"+c.ids["port-of-weir"], object{"port": object{"description": fmt.Sprint(addresses)}})
	}
	allow(cloudVIP, tenantVIP, "172.16.0.3")
	c.d.waitFor("say that its port is virtual", func() bool {
		return c.d.hasProblem(model.ProblemSegment, "port "+c.ids["port-of-weir"]+" has this director's MAC address and is virtual")
	})
	allow(cloudVIP, tenantVIP)
	c.works("a", "b")
	c.d.waitFor("have no problem any more", func() bool { return len(c.d.directorStatus().Problems) == 0 })
}

// translate lets the router translate sources for a while. Answers of full NAT do not pass it, and it knows those of a
// floating IP.
func (c *neutronCloud) translate(director, file string) {
	c.Helper()
	snat := func(enabled bool) {
		c.Helper()
		c.neutron.Update("routers/"+c.ids["router"], object{"router": object{"external_gateway_info": object{"network_id": c.ids["provider"], "enable_snat": enabled}}})
		if rules := c.n.NBctl("--bare", "--columns=type", "find", "nat", "type=snat"); strings.Contains(rules, "snat") != enabled {
			c.Fatalf("the router translates sources (%s), and is to: %v", rules, enabled)
		}
	}
	snat(true)
	const fullVIP = "203.0.113.11"
	c.client.Route(fullVIP+"/32", director)
	c.d.edit(file + "- {name: outside-nat, vip: " + fullVIP + ", protocol: tcp, port: 80, mode: nat, snat: true, health: {kind: tcp}, backends: [" +
		"{name: a, address: 172.16.0.11, segment: 'geneve:5001'}, {name: b, address: 172.16.0.12, segment: 'geneve:5001'}]}\n")
	c.d.ready()
	c.n.NBctl("--wait=hv", "sync")
	c.reaches(c.client, c.floating, "a", "b")
	c.reaches(c.client, fullVIP, "a", "b")
	snat(false)
}
