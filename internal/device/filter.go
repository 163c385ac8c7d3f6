package device

import (
	"errors"
	"fmt"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Filter is a place for a program in tc: a filter of the clsact queueing discipline. Before Linux
// 6.6 there is no tcx, and so no link that holds a program there. The program in a filter is
// replaced in one step, and found again by the filter's name.
type Filter struct {
	Name     string
	Parent   uint32 // netlink.HANDLE_MIN_INGRESS or HANDLE_MIN_EGRESS
	Priority uint16 // 0: FilterPriority
}

// FilterPriority is the priority of weir's filters: 'W'. Filters with other numbers have other
// owners.
const FilterPriority = 87

// Put puts a program in the filter of an interface, in place of any before it.
func (f Filter) Put(index, program int) error {
	err := netlink.QdiscAdd(&netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{
		LinkIndex: index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT,
	}})
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("add clsact: %w", err)
	}
	priority := f.Priority
	if priority == 0 {
		priority = FilterPriority
	}
	err = netlink.FilterReplace(&netlink.BpfFilter{
		FilterAttrs: netlink.FilterAttrs{LinkIndex: index, Parent: f.Parent, Handle: 1, Protocol: unix.ETH_P_ALL, Priority: priority},
		Fd:          program, Name: f.Name, DirectAction: true,
	})
	if err != nil {
		return fmt.Errorf("attach clsact filter %s: %w", f.Name, err)
	}
	return nil
}

// on returns the interface's filters of that name, to which the kernel may append.
func (f Filter) on(index int) (found []netlink.Filter, err error) {
	filters, err := netlink.FilterList(&netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Index: index}}, f.Parent)
	for _, filter := range filters {
		if bpf, is := filter.(*netlink.BpfFilter); is && strings.HasPrefix(bpf.Name, f.Name) {
			found = append(found, filter)
		}
	}
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENODEV) { // no clsact, or no interface
		err = nil
	}
	return found, err
}

// IsOn says whether the interface has the filter.
func (f Filter) IsOn(index int) bool {
	found, _ := f.on(index) // an interface that is gone has none
	return len(found) > 0
}

// Remove removes the filter from an interface, if it is there. The queueing discipline stays, because
// other programs may use it.
func (f Filter) Remove(index int) error {
	found, err := f.on(index)
	if err != nil {
		return fmt.Errorf("list filters of interface %d: %w", index, err)
	}
	for _, filter := range found {
		if err := netlink.FilterDel(filter); err != nil {
			return fmt.Errorf("remove filter %s of interface %d: %w", f.Name, index, err)
		}
	}
	return nil
}

// RemoveFilters removes filters from all interfaces except some.
func RemoveFilters(filters []Filter, except func(index int) bool) error {
	qdiscs, err := netlink.QdiscList(nil)
	if err != nil {
		return fmt.Errorf("list queueing disciplines: %w", err)
	}
	var errs []error
	for _, q := range qdiscs {
		if index := q.Attrs().LinkIndex; q.Type() == "clsact" && !except(index) {
			for _, f := range filters {
				errs = append(errs, f.Remove(index))
			}
		}
	}
	return errors.Join(errs...)
}
