package device

import (
	"fmt"
	"iter"
	"net"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
)

// Directors make pairs of veths, whose names begin so and go on with digits that tell datapaths apart.
const (
	ChecksPrefix = "weir-"   // health checks leave by it
	OnwardPrefix = "weirout" // the kernel sends on what comes in by it
	OtherEnd     = "-x"      // ends the name of the other end
)

var madeName = regexp.MustCompile("^(" + ChecksPrefix + "|" + OnwardPrefix + ")[0-9a-f]+(" + OtherEnd + ")?$")

// Made reports whether a director has made an interface for itself. No program belongs there, and it
// leads to no client and to no backend.
func Made(link netlink.Link) bool {
	return link.Type() == "veth" && madeName.MatchString(link.Attrs().Name)
}

// Candidates returns the names, in order, of the interfaces that one may mean: not of loopback, and of
// none that a director has made.
func Candidates(links iter.Seq[netlink.Link]) (names []string) {
	for l := range links {
		if l.Attrs().Flags&net.FlagLoopback == 0 && !Made(l) {
			names = append(names, l.Attrs().Name)
		}
	}
	slices.Sort(names)
	return names
}

// Named returns the interface of that name, or of that other name (altname); nil: there is none.
func Named(links []netlink.Link, name string) netlink.Link {
	var other netlink.Link
	for _, link := range links {
		if link.Attrs().Name == name {
			return link
		}
		if slices.Contains(link.Attrs().AltNames, name) {
			other = link
		}
	}
	return other
}

// CurrentNames returns the names that the interfaces with these names or other names have now.
// Names of missing interfaces stay as they are.
func CurrentNames(links []netlink.Link, names []string) []string {
	current := slices.Clone(names)
	for i, name := range names {
		if link := Named(links, name); link != nil {
			current[i] = link.Attrs().Name
		}
	}
	return current
}

// NamesNow is CurrentNames by the interfaces that the kernel has.
func NamesNow(names []string) ([]string, error) {
	links, err := netlink.LinkList()
	if err != nil {
		return nil, fmt.Errorf("list the interfaces: %w", err)
	}
	return CurrentNames(links, names), nil
}

// Names in BPF file systems have no dots, but interface names may, as those of VLANs and overlays
// mostly do; interface names have no colons (dev_valid_name in net/core/dev.c).

// PinName is an interface's name as the names of pins have it.
func PinName(name string) string { return strings.ReplaceAll(name, ".", ":") }

// PinnedInterface is the interface that has this PinName.
func PinnedInterface(pinName string) string { return strings.ReplaceAll(pinName, ":", ".") }

// ByName returns an interface; nil: it is not there.
func ByName(name string) netlink.Link {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return nil
	}
	return link
}

// NameOf returns the name of an interface; empty: it is not there. It asks the kernel once for each
// interface, and keeps the names in known.
func NameOf(index uint32, known map[uint32]string) string {
	if index == 0 {
		return ""
	}
	name, is := known[index]
	if !is {
		if link, err := netlink.LinkByIndex(int(index)); err == nil {
			name = link.Attrs().Name
		}
		known[index] = name
	}
	return name
}

// SetQuietlyUp sets a link up without an address of its own, so that it does not look for routers.
// Where /proc cannot be written it does look for them, but no host hears it.
func SetQuietlyUp(name string) (netlink.Link, error) {
	_ = os.WriteFile("/proc/sys/net/ipv6/conf/"+name+"/addr_gen_mode", []byte("1"), 0)
	link, err := netlink.LinkByName(name)
	if err != nil {
		return nil, err
	}
	return link, netlink.LinkSetUp(link)
}
