package test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"weir.io/weir/lab/netlab"
)

// addOVS is add with Open vSwitch as the hypervisor's switch, in userspace: this kernel may lack its module, and
// Geneve. Its address in the underlay is a bridge's, as OVS wants it there.
func (u *underlay) addOVS(name string, vni int, peers []int, addresses ...string) vm {
	u.Helper()
	u.hosts++
	number := u.hosts
	hypervisor, host := u.lab.Host("hv-"+name), u.lab.Host(name)
	u.lab.Link(hypervisor, u.lan, netlab.LinkOptions{XDP: true, MTU: underlayMTU})
	inside := u.lab.Link(host, hypervisor, netlab.LinkOptions{XDP: true, MTU: underlayMTU - 100, A: addresses, NameB: "tap0"})
	if err := u.lab.Err(); err != nil {
		u.Fatal(err)
	}
	for _, port := range []string{"eth0", "tap0"} { // OVS loses frames that the kernel has put together
		on(u.T, hypervisor, "ethtool", "-K", port, "gro", "off")
	}
	s := startOVS(u.T, hypervisor)
	s.vsctl("add-br", "br-under", "--", "set", "bridge", "br-under", "datapath_type=netdev", "--", "add-port", "br-under", "eth0")
	hypervisor.Address("br-under", lanPrefixes(number)...)
	on(u.T, hypervisor, "ip", "link", "set", "br-under", "up", "mtu", fmt.Sprint(underlayMTU))
	s.vsctl("add-br", "br-int", "--", "set", "bridge", "br-int", "datapath_type=netdev", "--", "add-port", "br-int", "tap0")
	// A hub: what comes from tunnels goes to the tenant's host alone, or it would go round, and where a host is, is
	// learned from its packets.
	flows, all := "table=0,in_port=tap0,actions=resubmit(,1)\n", ""
	for _, peer := range append(peers, directorHost) {
		if peer == number {
			continue
		}
		port := fmt.Sprint("tun", peer)
		s.vsctl("add-port", "br-int", port, "--", "set", "interface", port, "type="+u.kind, fmt.Sprintf("options:key=%d", vni),
			fmt.Sprintf("options:remote_ip=%v", u.vtep(peer)), "options:csum=true")
		flows += fmt.Sprintf("table=0,in_port=%s,actions=learn(table=1,priority=10,NXM_OF_ETH_DST[]=NXM_OF_ETH_SRC[],output:NXM_OF_IN_PORT[]),output:tap0\n", port)
		all += ",output:" + port
	}
	flows += "table=1,priority=1,actions=" + all[1:] + "\n"
	s.run("ovs-ofctl", "-O", "OpenFlow15", "--names", "replace-flows", "unix:"+filepath.Join(s.dir, "br-int.mgmt"), write(u.T, hypervisor, "flows", flows))
	return vm{host, inside.A, u.vtep(number), hypervisor}
}

// ovs is Open vSwitch on a host.
type ovs struct {
	*testing.T
	host *netlab.Host
	dir  string
}

func startOVS(t *testing.T, h *netlab.Host) *ovs {
	t.Helper()
	s := &ovs{t, h, filepath.Join(h.Dir(), "ovs")}
	if err := os.MkdirAll(s.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	database := filepath.Join(s.dir, "conf.db")
	s.run("ovsdb-tool", "create", database, "/usr/share/openvswitch/vswitch.ovsschema")
	s.start("ovsdb-server", database, "--remote=p"+s.db())
	waitFor(t, "Open vSwitch's database", func() bool { return listens(filepath.Join(s.dir, "db.sock")) })
	s.vsctl("--no-wait", "init")
	s.start("ovs-vswitchd", s.db(), "--disable-system")
	return s
}

func (s *ovs) db() string { return "unix:" + filepath.Join(s.dir, "db.sock") }

func (s *ovs) command(program string, args ...string) *netlab.Command {
	cmd := s.host.Command(context.Background(), program, args...)
	cmd.Env = append(cmd.Env, "OVS_RUNDIR="+s.dir, "OVS_LOGDIR="+s.dir, "OVS_DBDIR="+s.dir)
	return cmd
}

func (s *ovs) start(program string, args ...string) {
	s.Helper()
	cmd := s.command(program, append(args, "--no-chdir", "--unixctl="+filepath.Join(s.dir, program+".ctl"))...)
	if err := cmd.Start(); err != nil {
		s.Fatalf("start %s on %s (make deps): %v", program, s.host.Name, err)
	}
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait() // it is killed
		close(ended)
	}()
	s.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-ended
	})
}

func (s *ovs) run(program string, args ...string) string {
	s.Helper()
	out, err := s.command(program, args...).CombinedOutput()
	if err != nil {
		s.Fatalf("%s on %s: %v: %s", program, s.host.Name, err, out)
	}
	return string(out)
}

func (s *ovs) vsctl(args ...string) string {
	s.Helper()
	return s.run("ovs-vsctl", append([]string{"--db=" + s.db(), "--timeout=60"}, args...)...)
}

// A tenant's hosts are behind Open vSwitch: a client and two servers, in VXLAN and in Geneve with checksums, over
// IPv4 and IPv6, in l2dsr and nat. Large transfers find the path's MTU, which is smaller than the client's link.
func TestTenantsBehindOVS(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"vxlan", "geneve"} {
		for _, six := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s over 6: %v", kind, six), func(t *testing.T) {
				u := newUnderlay(t, kind, six)
				const vip, client, routed = "172.16.0.100", "172.16.0.2", "172.16.0.5"
				peers := []int{2, 3, 4}
				caller := u.addOVS("client", 5001, peers, client+"/24", routed+"/24")
				hosts := fmt.Sprintf("{address: %s, mac: '%s', vtep: '%v'}, ", routed, caller.port.MAC, caller.vtep)
				hosts += fmt.Sprintf("{address: %s, mac: '%s', vtep: '%v'}", client, caller.port.MAC, caller.vtep)
				backends := ""
				for n := range 2 {
					server := u.addOVS(fmt.Sprint("server", n), 5001, peers, fmt.Sprintf("172.16.0.%d/24", 11+n))
					server.Address("lo", vip+"/32")
					server.Sysctl("net.ipv4.conf.all.arp_ignore", "1")
					server.Sysctl("net.ipv4.conf.all.arp_announce", "2")
					for _, port := range []uint16{80, 8080} {
						startNginxAt(t, server.Host, port)
					}
					server.Route(routed+"/32", "172.16.0.3") // replies of nat go by the director
					backends += fmt.Sprintf("  - {address: 172.16.0.%d}\n", 11+n)
					hosts += fmt.Sprintf(", {address: 172.16.0.%d, mac: '%s', vtep: '%v'}", 11+n, server.port.MAC, server.vtep)
				}
				service := func(name string, port int, mode, keys string) string {
					return fmt.Sprintf("- name: %s\n  segment: '%s:5001'\n  vip: %s\n  protocol: tcp\n  port: %d\n  mode: %s\n  health: {kind: tcp, interval: 200ms}\n  backends:\n%s",
						name, kind, vip, port, mode, strings.ReplaceAll(backends, "}", keys+"}"))
				}
				file := u.file(service("direct", 80, "l2dsr", "")+service("translated", 81, "nat", ", port: 8080")) +
					fmt.Sprintf("segments:\n- {id: '%s:5001', mtu: 1300, addresses: [172.16.0.3], hosts: [%s]}\n", kind, hosts)
				d := startDaemon(t, u.director, "run", file)
				d.waitFor("forward", func() bool { _, err := d.services(); return err == nil })
				for port, from := range map[int]string{80: client, 81: routed} {
					url := fmt.Sprintf("http://%s:%d", vip, port)
					waitFor(t, "an answer at "+url, func() bool {
						out, err := tryOn(t, caller.Host, "curl", "--silent", "--interface", from, "--max-time", "2", url+"/name")
						return err == nil && strings.HasPrefix(out, "server")
					})
					large := filepath.Join(caller.Dir(), "large")
					if err := os.WriteFile(large, bytes.Repeat([]byte("a tenant's data. "), 1<<18), 0o644); err != nil {
						t.Fatal(err)
					}
					if out, err := tryOn(t, caller.Host, "curl", "--silent", "--show-error", "--fail", "--interface", from, "--max-time", "60", "-T", large, url+"/upload/large"); err != nil {
						t.Errorf("upload to %s: %v %s", url, err, out)
					}
				}
			})
		}
	}
}
