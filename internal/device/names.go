package device

import (
	"slices"

	"github.com/vishvananda/netlink"
)

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
