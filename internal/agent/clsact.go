package agent

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Before Linux 6.6 there is no tcx, and so no link: a filter of the clsact queueing discipline
// holds the program. It is replaced in one step, and found again by its name.
const (
	filterPrefix     = "weir-host-"
	filterPriority   = 87 // 'W'; filters with other numbers have other owners
	redirectPriority = 88 // after the others: a packet that redirection sends away is gone
)

// leaves says whether the hook is for packets that leave.
func leaves(hook string) bool { return hook == hookEgress || hook == hookLeave }

func priorityOf(hook string) uint16 {
	if hook == hookArrive || hook == hookLeave {
		return redirectPriority
	}
	return filterPriority
}

func filterParent(hook string) uint32 {
	if leaves(hook) {
		return netlink.HANDLE_MIN_EGRESS
	}
	return netlink.HANDLE_MIN_INGRESS
}

// putFilter attaches the program, or replaces the one that is attached.
func putFilter(u uplink, hook string, program *ebpf.Program) error {
	qdisc := &netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{
		LinkIndex: u.index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT,
	}}
	if err := netlink.QdiscAdd(qdisc); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("add clsact to %s: %w", u.name, err)
	}
	filter := &netlink.BpfFilter{
		FilterAttrs: netlink.FilterAttrs{
			LinkIndex: u.index, Parent: filterParent(hook), Handle: 1,
			Protocol: unix.ETH_P_ALL, Priority: priorityOf(hook),
		},
		Fd: program.FD(), Name: filterPrefix + hook, DirectAction: true,
	}
	if err := netlink.FilterReplace(filter); err != nil {
		return fmt.Errorf("attach clsact %s to %s: %w", hook, u.name, err)
	}
	return nil
}

// removeFilter removes what putFilter attached, if it did. The queueing discipline stays, because
// other programs may use it.
func removeFilter(u uplink, hook string) error {
	link := &netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Index: u.index}}
	filters, err := netlink.FilterList(link, filterParent(hook))
	if err != nil {
		if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) { // no clsact
			return nil
		}
		return fmt.Errorf("list filters of %s: %w", u.name, err)
	}
	for _, f := range filters {
		bpf, ok := f.(*netlink.BpfFilter)
		if !ok || !isNamed(bpf.Name, hook) {
			continue
		}
		if err := netlink.FilterDel(f); err != nil {
			return fmt.Errorf("remove filter of %s: %w", u.name, err)
		}
	}
	return nil
}

// isNamed says whether a filter is a hook's. The kernel may append to the name.
func isNamed(name, hook string) bool { return strings.HasPrefix(name, filterPrefix+hook) }

// hasFilters reports whether an interface has filters of the agent's.
func hasFilters(index int) bool {
	link := &netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Index: index}}
	for _, hook := range []string{hookIngress, hookEgress, hookArrive, hookLeave} {
		filters, err := netlink.FilterList(link, filterParent(hook))
		if err != nil {
			continue // no clsact
		}
		for _, f := range filters {
			if bpf, ok := f.(*netlink.BpfFilter); ok && isNamed(bpf.Name, hook) {
				return true
			}
		}
	}
	return false
}

// removeFilters removes the filters of all interfaces except some, by index.
func removeFilters(except map[string]bool) error {
	qdiscs, err := netlink.QdiscList(nil)
	if err != nil {
		return fmt.Errorf("list queueing disciplines: %w", err)
	}
	var errs []error
	for _, q := range qdiscs {
		index := q.Attrs().LinkIndex
		if q.Type() != "clsact" || except[strconv.Itoa(index)] {
			continue
		}
		u := uplink{name: "interface " + strconv.Itoa(index), index: index}
		for _, hook := range []string{hookIngress, hookEgress, hookArrive, hookLeave} {
			errs = append(errs, removeFilter(u, hook))
		}
	}
	return errors.Join(errs...)
}
