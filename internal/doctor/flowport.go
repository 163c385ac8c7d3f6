package doctor

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// flowPort checks that the other directors of the group can be told of flows: that no other program
// has the port, at those of the group's addresses that are this host's. A director that runs listens
// there itself.
func (x *examination) flowPort() {
	d := &x.config.Director
	port := d.FlowPortOrDefault()
	if x.running || len(d.Group) < 2 || port == 0 || !d.Store.Etcd.Given() {
		return
	}
	for _, a := range d.Group {
		if _, here := x.addresses[a]; here {
			x.canListen(netip.AddrPortFrom(a, port))
		}
	}
}

func (x *examination) canListen(at netip.AddrPort) {
	check := "flow port " + at.String()
	l, err := net.Listen("tcp", at.String())
	if err == nil {
		l.Close()
		x.ok(check, "is free")
		return
	}
	const fix = "give director.flow-port another port, the same on all directors"
	if !errors.Is(err, unix.EADDRINUSE) {
		x.fail(check, fix, "cannot be listened at, so the other directors are not told of flows: %v", err)
		return
	}
	pid, name := holder(at)
	switch {
	case name == "":
		x.warn(check, "see that it is weir run that has it", "is in use, by whom cannot be seen from here")
	case name == ownName():
		x.ok(check, "is this director's, process %s", pid)
	default:
		x.fail(check, fix+", or stop "+name, "is in use by %s (process %s): the other directors are not told of flows", name, pid)
	}
}

// holder returns the process that has a TCP port, if it can be seen.
func holder(of netip.AddrPort) (pid, name string) {
	family := uint8(unix.AF_INET6)
	if of.Addr().Is4() {
		family = unix.AF_INET
	}
	inodes := listening(family, of)
	if family == unix.AF_INET {
		inodes = append(inodes, listening(unix.AF_INET6, of)...) // one that listens at all addresses has both families
	}
	if len(inodes) == 0 {
		return "", ""
	}
	files, _ := filepath.Glob("/proc/[0-9]*/fd/*") // processes that end meanwhile have none
	for _, file := range files {
		target, err := os.Readlink(file)
		if err != nil {
			continue
		}
		for _, inode := range inodes {
			if target == fmt.Sprintf("socket:[%d]", inode) {
				pid = strings.Split(file, "/")[2]
				return pid, commandOf(pid)
			}
		}
	}
	return "", ""
}

// listening returns the inodes of sockets that keep other programs from a port.
func listening(family uint8, at netip.AddrPort) (inodes []uint32) {
	sockets, err := netlink.SocketDiagTCP(family)
	if err != nil {
		return nil // a kernel without it
	}
	for _, s := range sockets {
		address, _ := netip.AddrFromSlice(s.ID.Source)
		address = address.Unmap()
		if s.ID.SourcePort == at.Port() && s.INode != 0 && (address == at.Addr() || address.IsUnspecified()) {
			inodes = append(inodes, s.INode)
		}
	}
	return inodes
}

// commandOf returns what the kernel calls a process, "" if it is gone.
func commandOf(pid string) string {
	name, err := os.ReadFile(filepath.Join("/proc", pid, "comm"))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(name))
}

// ownName is also a director's name: it is the same program.
func ownName() string { return commandOf("self") }
