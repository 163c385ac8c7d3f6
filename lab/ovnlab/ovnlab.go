// Package ovnlab runs a real OVN for tests: its databases and ovn-northd, and hosts with Open vSwitch and
// ovn-controller. The datapaths of most are Open vSwitch's own dummies: they make flows as on a real host, and touch
// no network. Hypervisors have one in a network namespace that carries packets.
package ovnlab

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
)

const patience = 60 * time.Second

// OVN is an OVN whose processes end with the test.
type OVN struct {
	// NB and SB are the databases' sockets as endpoints, and TCP is the Southbound database's on the
	// loopback. SSL is the same with TLS, if there is any.
	NB, SB, TCP, SSL string

	t       testing.TB
	dir     string
	secure  []string
	sb      *Daemon
	north   *Daemon
	started map[string]*Daemon
}

// Options are the differences between OVNs.
type Options struct {
	// CA, Cert and Key are PEM files of the Southbound database's server; none: it has no TLS.
	CA, Cert, Key string
	// Schema of the Southbound database; empty: the installed version's.
	Schema string
	// Databases alone: without ovn-northd.
	Databases bool
}

// Where Debian has the schemas.
const (
	schemas       = "/usr/share/ovn/"
	switchSchemas = "/usr/share/openvswitch/"
)

// New starts an OVN.
func New(t testing.TB, o Options) *OVN {
	t.Helper()
	dir, err := os.MkdirTemp("", "ovn") // the test's own would be too long for sockets
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := loopbackUp(); err != nil {
		t.Fatal("bring the loopback up:", err)
	}
	n := &OVN{t: t, dir: dir, NB: "unix:" + filepath.Join(dir, "nb.sock"), SB: "unix:" + filepath.Join(dir, "sb.sock"),
		TCP: fmt.Sprintf("tcp:127.0.0.1:%d", freePort(t)), started: map[string]*Daemon{}}
	if o.Cert != "" {
		n.SSL = fmt.Sprintf("ssl:127.0.0.1:%d", freePort(t))
		n.secure = []string{"--private-key=" + o.Key, "--certificate=" + o.Cert, "--ca-cert=" + o.CA}
	}
	if o.Schema == "" {
		o.Schema = schemas + "ovn-sb.ovsschema"
	}
	n.run("ovsdb-tool", "create", filepath.Join(dir, "nb.db"), schemas+"ovn-nb.ovsschema")
	n.run("ovsdb-tool", "create", filepath.Join(dir, "sb.db"), o.Schema)
	n.start("nb", "ovsdb-server", filepath.Join(dir, "nb.db"), "--remote=p"+n.NB)
	n.StartSB()
	n.wait("the Northbound database answers", func() error { _, err := n.try("ovn-nbctl", "--db="+n.NB, "--no-wait", "init"); return err })
	if !o.Databases {
		n.StartNorthd()
		n.NBctl("--wait=sb", "sync")
	}
	return n
}

// StartSB starts the server of the Southbound database, and waits until it answers.
func (n *OVN) StartSB() {
	n.t.Helper()
	remotes := []string{"--remote=p" + n.SB, "--remote=" + passive(n.TCP), "--remote=db:OVN_Southbound,SB_Global,connections"}
	if n.SSL != "" {
		remotes = append(remotes, "--remote="+passive(n.SSL))
	}
	n.sb = n.start("sb", "ovsdb-server", append(append([]string{filepath.Join(n.dir, "sb.db")}, remotes...), n.secure...)...)
	n.wait("the Southbound database answers", func() error {
		_, err := n.try("ovsdb-client", "list-dbs", n.SB)
		return err
	})
}

// passive returns the endpoint at which a server has to listen.
func passive(endpoint string) string {
	kind, rest, _ := strings.Cut(endpoint, ":")
	host, port, _ := net.SplitHostPort(rest)
	return "p" + kind + ":" + port + ":" + host
}

// StopSB ends the server of the Southbound database as a power cut does.
func (n *OVN) StopSB() { n.sb.Kill() }

// Roles makes the server listen with TLS at one more endpoint, where clients may do what hosts may: RBAC.
func (n *OVN) Roles() (endpoint string) {
	n.t.Helper()
	endpoint = fmt.Sprintf("ssl:127.0.0.1:%d", freePort(n.t))
	n.SBctl("set-connection", "role=ovn-controller", passive(endpoint))
	n.wait("the server listens for hosts", func() error {
		conn, err := net.Dial("tcp", strings.TrimPrefix(endpoint, "ssl:"))
		if err == nil {
			conn.Close()
		}
		return err
	})
	return endpoint
}

// FreezeSB makes the server of the Southbound database do nothing, or go on.
func (n *OVN) FreezeSB(frozen bool) {
	n.t.Helper()
	signal := syscall.SIGCONT
	if frozen {
		signal = syscall.SIGSTOP
	}
	if err := n.sb.cmd.Process.Signal(signal); err != nil {
		n.t.Fatal(err)
	}
}

// EmptySB replaces the Southbound database, whose server has been stopped, by one without content.
func (n *OVN) EmptySB() {
	n.t.Helper()
	file := filepath.Join(n.dir, "sb.db")
	if err := os.Remove(file); err != nil {
		n.t.Fatal(err)
	}
	n.run("ovsdb-tool", "create", file, schemas+"ovn-sb.ovsschema")
}

// StartNorthd starts ovn-northd.
func (n *OVN) StartNorthd() {
	n.t.Helper()
	n.north = n.start("northd", "ovn-northd", "--ovnnb-db="+n.NB, "--ovnsb-db="+n.SB)
}

// StopNorthd ends ovn-northd.
func (n *OVN) StopNorthd() { n.north.Kill() }

// NBctl and SBctl run a command of ovn-nbctl or ovn-sbctl, and return what it prints.
func (n *OVN) NBctl(args ...string) string {
	n.t.Helper()
	return n.run("ovn-nbctl", append([]string{"--db=" + n.NB, "--timeout=60"}, args...)...)
}

// SBctl runs a command of ovn-sbctl.
func (n *OVN) SBctl(args ...string) string {
	n.t.Helper()
	return n.run("ovn-sbctl", append([]string{"--db=" + n.SB, "--timeout=60"}, args...)...)
}

// Host starts a host of OVN with an address of its end of tunnels, of these kinds: "geneve,vxlan".
func (n *OVN) Host(name, ip, kinds string) *Host {
	n.t.Helper()
	h := n.newHost(name, nil, "--enable-dummy=override", "--disable-system")
	h.begin(ip, kinds, "dummy")
	return h
}

// Place is where a host's switch is: a network namespace.
type Place interface {
	// Do runs a function in the namespace.
	Do(func() error) error
}

// Uplink is the bridge by which a host with a switch of its own is in its network, and "physnet" the name by which OVN
// knows that network.
const (
	Uplink  = "br-phys"
	Network = "physnet"
)

// Hypervisor starts a host of OVN whose switch is in a network namespace, and carries packets: in its own process, with
// an interface of the namespace as its way to the network. The prefix has its address.
func (n *OVN) Hypervisor(at Place, name, port, prefix, kinds string) *Host {
	n.t.Helper()
	h := n.newHost(name, at, "--disable-system")
	h.Vsctl("add-br", Uplink, "--", "set", "bridge", Uplink, "datapath-type=netdev", "--", "add-port", Uplink, port)
	ip, _, err := net.ParseCIDR(prefix)
	if err == nil {
		err = at.Do(func() error {
			link, err := netlink.LinkByName(Uplink)
			if err != nil {
				return err
			}
			address, err := netlink.ParseAddr(prefix)
			if err != nil {
				return err
			}
			if err := netlink.AddrAdd(link, address); err != nil {
				return err
			}
			return netlink.LinkSetUp(link)
		})
	}
	if err != nil {
		n.t.Fatalf("%s: address %s: %v", name, prefix, err)
	}
	h.Vsctl("--no-wait", "set", "Open_vSwitch", ".", "external_ids:ovn-bridge-mappings="+Network+":"+Uplink, "external_ids:ovn-bridge-datapath-type=netdev")
	h.begin(ip.String(), kinds, "netdev")
	return h
}

// newHost starts a host's switch.
func (n *OVN) newHost(name string, at Place, flags ...string) *Host {
	n.t.Helper()
	h := &Host{OVN: n, Name: name, dir: filepath.Join(n.dir, name), at: at}
	if err := os.Mkdir(h.dir, 0o755); err != nil {
		n.t.Fatal(err)
	}
	h.db = "unix:" + filepath.Join(h.dir, "db.sock")
	n.run("ovsdb-tool", "create", filepath.Join(h.dir, "conf.db"), switchSchemas+"vswitch.ovsschema")
	h.start("db", "ovsdb-server", filepath.Join(h.dir, "conf.db"), "--remote=p"+h.db)
	n.wait("Open vSwitch's database answers", func() error { _, err := n.try("ovs-vsctl", "--db="+h.db, "--no-wait", "init"); return err })
	h.start("switch", "ovs-vswitchd", append(flags, h.db)...)
	return h
}

// begin makes the host one of OVN's, and waits until it is.
func (h *Host) begin(ip, kinds, datapath string) {
	h.t.Helper()
	h.Vsctl("--no-wait", "set", "Open_vSwitch", ".", "external_ids:system-id="+h.Name, "external_ids:hostname="+h.Name,
		"external_ids:ovn-remote="+h.SB, "external_ids:ovn-encap-type="+kinds, "external_ids:ovn-encap-ip="+ip, "--",
		"add-br", "br-int", "--", "set", "bridge", "br-int", "fail-mode=secure", "datapath-type="+datapath)
	h.controller = h.start("controller", "ovn-controller", h.db)
	h.wait("the host is a chassis", func() error {
		select {
		case <-h.controller.Ended:
			h.t.Fatalf("ovn-controller of %s has ended:\n%s", h.Name, h.controller.Log())
		default:
		}
		if out := h.SBctl("--bare", "--columns=name", "find", "Chassis", "name="+h.Name); strings.TrimSpace(out) != h.Name {
			return fmt.Errorf("no chassis %s: %s", h.Name, h.controller.Log())
		}
		return nil
	})
}

// Host is a host of OVN.
type Host struct {
	*OVN
	Name       string
	at         Place // of its switch; nil: it carries no packets
	dir, db    string
	controller *Daemon
}

func (h *Host) start(name, program string, args ...string) *Daemon {
	return h.startIn(h.at, h.dir, h.Name+" "+name, program, args...)
}

// Vsctl runs a command of ovs-vsctl on the host.
func (h *Host) Vsctl(args ...string) string {
	h.t.Helper()
	return h.run("ovs-vsctl", append([]string{"--db=" + h.db, "--timeout=60"}, args...)...)
}

// Plug makes the host have a logical port, as a hypervisor does.
func (h *Host) Plug(port string) {
	h.t.Helper()
	h.PlugAs(port, port)
}

// PlugAs does so with an interface of another name.
func (h *Host) PlugAs(name, port string) {
	h.t.Helper()
	h.Vsctl("--may-exist", "add-port", "br-int", name, "--", "set", "Interface", name, "external_ids:iface-id="+port)
}

// Unplug makes the host have a logical port no more.
func (h *Host) Unplug(port string) {
	h.t.Helper()
	h.Vsctl("del-port", "br-int", port)
}

// Flows returns the host's OpenFlow flows of a table, one a line.
func (h *Host) Flows(table int) string {
	h.t.Helper()
	return h.run("ovs-ofctl", "-O", "OpenFlow15", "--no-stats", "dump-flows", "unix:"+filepath.Join(h.dir, "br-int.mgmt"), fmt.Sprintf("table=%d", table))
}

// Trace returns what the host's switch does with a packet, which ovs-fields(7) describes.
func (h *Host) Trace(packet string) string {
	h.t.Helper()
	return h.run("ovs-appctl", "-t", filepath.Join(h.dir, h.Name+"-switch.ctl"), "ofproto/trace", "br-int", packet)
}

// TLVs returns the Geneve options that the host sends and takes.
func (h *Host) TLVs() string {
	h.t.Helper()
	return h.run("ovs-ofctl", "-O", "OpenFlow15", "dump-tlv-map", "unix:"+filepath.Join(h.dir, "br-int.mgmt"))
}

// Log returns what ovn-controller has said.
func (h *Host) Log() string { return h.controller.Log() }

func (n *OVN) start(name, program string, args ...string) *Daemon {
	return n.startIn(nil, n.dir, name, program, args...)
}

// startIn starts a daemon whose sockets are in a directory.
func (n *OVN) startIn(at Place, dir, name, program string, args ...string) *Daemon {
	n.t.Helper()
	path, err := exec.LookPath(program)
	if err != nil {
		n.t.Fatal("the tests need ovn-central, ovn-host and openvswitch-switch (make deps):", err)
	}
	if program != "ovn-controller" { // whose socket is in the directory anyway
		args = append(args, "--unixctl="+filepath.Join(dir, strings.ReplaceAll(name, " ", "-")+".ctl"))
	}
	cmd := exec.Command(path, append(args, "--no-chdir")...)
	cmd.Env = append(os.Environ(), "OVS_RUNDIR="+dir, "OVN_RUNDIR="+dir, "OVS_LOGDIR="+dir, "OVN_LOGDIR="+dir, "OVS_DBDIR="+dir)
	p := StartDaemon(n.t, at, name, cmd)
	n.started[name] = p
	return p
}

// run runs a program that ends, and returns what it prints.
func (n *OVN) run(program string, args ...string) string {
	n.t.Helper()
	out, err := n.try(program, args...)
	if err != nil {
		n.t.Fatal(err)
	}
	return out
}

func (n *OVN) try(program string, args ...string) (string, error) {
	cmd := exec.Command(program, args...)
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w\n%s", program, strings.Join(args, " "), err, &said)
	}
	return string(out), nil
}

func (n *OVN) wait(what string, try func() error) {
	n.t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		err := try()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			var logs strings.Builder
			for name, p := range n.started {
				fmt.Fprintf(&logs, "\n%s:\n%s", name, p.Log())
			}
			n.t.Fatalf("never: %s: %v%s", what, err, &logs)
		}
	}
}

// freePort returns a port of the loopback that only the tests use.
func freePort(t testing.TB) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// loopbackUp lets processes of this network namespace reach each other.
func loopbackUp() error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	return netlink.LinkSetUp(lo)
}
