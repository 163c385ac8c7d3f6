// Package netlab makes hosts, links, switches and ECMP routers in network
// namespaces, for tests, benchmarks and the demo. It needs root.
//
// A topology reads from top to bottom:
//
//	lab := netlab.ForTest(t)
//	client, router := lab.Host("client"), lab.Router("router")
//	lab.Link(client, router, netlab.LinkOptions{A: []string{"10.0.0.2/24"}, B: []string{"10.0.0.1/24"}})
//	client.Route("default", "10.0.0.1")
//	conn, err := client.DialContext(ctx, "tcp", "10.1.0.2:80")
//
// The verbs that build a topology return no errors, because every line of it
// would have to check one: the first error ends a test at once, and elsewhere is
// kept for [Lab.Err] while everything after it does nothing.
//
// [Lab.Close] removes all of it: processes, namespaces, mounts and files. Their
// names carry the process's id, so that [Sweep], which every new lab begins
// with, finds what a killed process left behind.
package netlab

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// ErrNotRoot says that network namespaces cannot be made by this user.
var ErrNotRoot = errors.New("network namespaces need root")

// Lab is a set of hosts and what connects them.
type Lab struct {
	prefix string      // of every name: weir-PID, or weir-PID.N for a further lab
	dir    string      // of every file
	fatal  func(error) // called with the first error
	hosts  []*Host
	links  int // made so far

	mu  sync.Mutex
	err error
}

// labs are the open ones of this process, by prefix.
var labs = struct {
	sync.Mutex
	open map[string]*Lab
}{open: map[string]*Lab{}}

// New makes an empty lab, after removing what dead processes left behind.
func New() (*Lab, error) {
	if os.Geteuid() != 0 {
		return nil, ErrNotRoot
	}
	if err := Sweep(); err != nil {
		return nil, fmt.Errorf("remove what earlier labs left: %w", err)
	}
	if err := shareNamespaceDir(); err != nil {
		return nil, err
	}
	labs.Lock()
	defer labs.Unlock()
	lab := &Lab{prefix: namePrefix + strconv.Itoa(os.Getpid()), fatal: func(error) {}}
	for n, first := 2, lab.prefix; labs.open[lab.prefix] != nil; n++ {
		lab.prefix = first + "." + strconv.Itoa(n)
	}
	lab.dir = filepath.Join(stateDir, lab.prefix)
	if err := os.MkdirAll(lab.dir, 0o755); err != nil {
		return nil, fmt.Errorf("make the lab's directory: %w", err)
	}
	labs.open[lab.prefix] = lab
	return lab, nil
}

// Err returns the first error of a verb that built the topology.
func (l *Lab) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// try runs a step of building the topology, unless an earlier one failed.
func (l *Lab) try(step func() error, format string, args ...any) {
	if l.Err() != nil {
		return
	}
	err := step()
	if err == nil {
		return
	}
	err = fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), err)
	l.mu.Lock()
	l.err = err
	l.mu.Unlock()
	l.fatal(err)
}

// Close kills the processes that run in the lab's namespaces and removes
// everything that the lab made. It may be called more than once.
func (l *Lab) Close() error {
	labs.Lock()
	defer labs.Unlock()
	if labs.open[l.prefix] != l {
		return nil
	}
	delete(labs.open, l.prefix)
	for _, h := range l.hosts {
		h.release()
	}
	return remove([]string{l.prefix})
}

// Host makes a host: a network namespace with loopback up, reverse path filters
// off and no duplicate address detection.
func (l *Lab) Host(name string) *Host {
	h := &Host{Name: name, lab: l, ns: netns.None()}
	l.try(h.create, "host %s", name)
	l.hosts = append(l.hosts, h)
	return h
}

// hashFields are the fields of a packet by which a router chooses a next hop: addresses,
// protocol and ports (net.ipv4.fib_multipath_hash_fields,
// Documentation/networking/ip-sysctl.rst).
const hashFields = 0x01 | 0x02 | 0x04 | 0x10 | 0x20

// Router makes a host that forwards both families and spreads flows over the
// next hops of a route by addresses, ports and protocol. It reads them from the packet, as
// policy 3 does. Policy 1 takes the hash that the sender's socket has left in it, if it came
// over veth: TCP changes that when it sends again, and the flow takes another way.
func (l *Lab) Router(name string) *Host {
	h := l.Host(name)
	h.Sysctl("net.ipv4.ip_forward", "1")
	h.Sysctl("net.ipv6.conf.all.forwarding", "1")
	for _, family := range []string{"ipv4", "ipv6"} {
		h.Sysctl("net."+family+".fib_multipath_hash_policy", "3")
		h.Sysctl("net."+family+".fib_multipath_hash_fields", strconv.Itoa(hashFields))
	}
	return h
}

// shareNamespaceDir makes the directory of namespaces a shared mount of itself, as
// "ip netns add" does when it is not one yet: were that to happen during a lab, the
// lab's mounts would be covered, and could not be removed.
func shareNamespaceDir() error {
	if err := os.MkdirAll(namespaceDir, 0o755); err != nil {
		return err
	}
	err := unix.Mount("", namespaceDir, "", unix.MS_SHARED|unix.MS_REC, "")
	if err == unix.EINVAL { // not a mount
		if err = unix.Mount(namespaceDir, namespaceDir, "", unix.MS_BIND|unix.MS_REC, ""); err == nil {
			err = unix.Mount("", namespaceDir, "", unix.MS_SHARED|unix.MS_REC, "")
		}
	}
	if err != nil {
		return fmt.Errorf("share %s: %w", namespaceDir, err)
	}
	return nil
}

// newNamespace makes a named network namespace and returns to the caller's own.
func newNamespace(name string) (_ netns.NsHandle, err error) {
	runtime.LockOSThread()
	own, err := netns.Get()
	if err != nil {
		runtime.UnlockOSThread()
		return netns.None(), fmt.Errorf("own network namespace: %w", err)
	}
	defer own.Close()
	ns, err := netns.NewNamed(name)
	// A thread that cannot return stays locked and ends with its goroutine.
	if back := unix.Setns(int(own), unix.CLONE_NEWNET); back != nil {
		return ns, errors.Join(err, fmt.Errorf("return to the own network namespace: %w", back))
	}
	runtime.UnlockOSThread()
	if err != nil {
		return netns.None(), fmt.Errorf("make network namespace %s: %w", name, err)
	}
	return ns, nil
}
