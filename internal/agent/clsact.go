package agent

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"

	"weir.io/weir/internal/device"
)

// Before Linux 6.6 there is no tcx: filters hold the programs.
const (
	filterPrefix     = "weir-host-"
	redirectPriority = device.FilterPriority + 1 // after the others: a packet that redirection sends away is gone
)

// leaves says whether the hook is for packets that leave.
func leaves(hook string) bool { return hook == hookEgress || hook == hookLeave }

func filterOf(hook string) device.Filter {
	f := device.Filter{Name: filterPrefix + hook, Parent: netlink.HANDLE_MIN_INGRESS}
	if leaves(hook) {
		f.Parent = netlink.HANDLE_MIN_EGRESS
	}
	if hook == hookArrive || hook == hookLeave {
		f.Priority = redirectPriority
	}
	return f
}

func allFilters() (all []device.Filter) {
	for _, hook := range []string{hookIngress, hookEgress, hookArrive, hookLeave} {
		all = append(all, filterOf(hook))
	}
	return all
}

// putFilter attaches the program, or replaces the one that is attached.
func putFilter(u uplink, hook string, program *ebpf.Program) error {
	if err := filterOf(hook).Put(u.index, program.FD()); err != nil {
		return fmt.Errorf("attach to %s: %w", u.name, err)
	}
	return nil
}

// removeFilter removes what putFilter attached, if it did.
func removeFilter(u uplink, hook string) error { return filterOf(hook).Remove(u.index) }

// isNamed says whether a filter is a hook's. The kernel may append to the name.
func isNamed(name, hook string) bool { return strings.HasPrefix(name, filterPrefix+hook) }

// hasFilters reports whether an interface has filters of the agent's.
func hasFilters(index int) bool {
	return slices.ContainsFunc(allFilters(), func(f device.Filter) bool { return f.IsOn(index) })
}

// removeFilters removes the filters of all interfaces except some, by index.
func removeFilters(except map[string]bool) error {
	return device.RemoveFilters(allFilters(), func(index int) bool { return except[strconv.Itoa(index)] })
}
