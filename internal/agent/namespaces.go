package agent

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"slices"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// namedNamespaces is where "ip netns" keeps its names.
const namedNamespaces = "/run/netns"

// elsewhere is the other network namespaces that have connections of this host: their
// numbers in this namespace, and their addresses.
type elsewhere struct {
	namespaces []uint32
	addresses  map[netip.Addr]bool
}

// findNamespaces looks at the namespaces that the configuration names. A namespace that is not
// there has no connections: its container does not run, or the agent's own container does not have
// the name. The agent waits for it.
func findNamespaces(names []string) (e elsewhere, waits []wait, err error) {
	e.addresses = make(map[netip.Addr]bool)
	for _, name := range names {
		err := e.add(name)
		if errors.Is(err, fs.ErrNotExist) {
			waits = append(waits, wait{"network namespace " + name, "is not there: there is no " + namespacePath(name)})
			continue
		}
		if err != nil {
			return elsewhere{}, nil, fmt.Errorf("network namespace %s: %w", name, err)
		}
	}
	slices.Sort(e.namespaces)
	e.namespaces = slices.Compact(e.namespaces)
	return e, waits, nil
}

func (e *elsewhere) add(name string) error {
	file, err := os.Open(namespacePath(name))
	if err != nil {
		return err
	}
	defer file.Close()
	id, err := namespaceID(int(file.Fd()))
	if err != nil {
		return err
	}
	there, err := netlink.NewHandleAt(netns.NsHandle(file.Fd()), unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("enter it: %w", err)
	}
	defer there.Close()
	list, err := there.AddrList(nil, netlink.FAMILY_ALL)
	if err != nil {
		return fmt.Errorf("list its addresses: %w", err)
	}
	for _, a := range list {
		if address, ok := netip.AddrFromSlice(a.IP); ok {
			e.addresses[address.Unmap()] = true
		}
	}
	e.namespaces = append(e.namespaces, id)
	return nil
}

// namespaceID returns the number by which this namespace's kernel knows another namespace. The
// kernel numbers a namespace when it has to name it, such as for the other end of a veth; others
// get their number here.
func namespaceID(fd int) (uint32, error) {
	id, err := netlink.GetNetNsIdByFd(fd)
	if err == nil && id < 0 {
		if err = netlink.SetNetNsIdByFd(fd, -1); err == nil {
			id, err = netlink.GetNetNsIdByFd(fd)
		}
	}
	if err != nil {
		return 0, fmt.Errorf("ask for its number: %w", err)
	}
	if id < 0 {
		return 0, errors.New("the kernel gives it no number")
	}
	return uint32(id), nil
}
