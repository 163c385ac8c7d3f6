package ovn

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// readAddresses reads the column mac of a port. Each of its strings is one of these (ovn-nb(5),
// "addresses" of the table Logical_Switch_Port, which ovn-northd copies):
//
//	MAC IP...             the usual one; OVN also takes IP/LENGTH, and ends at what it cannot read
//	unknown               packets for all other MAC addresses, too
//	router                a router's port: none of its own
//	dynamic...            OVN has chosen an address, which only the Northbound database has
//	MAC dynamic
//
// What cannot be read is left out, and the error says what it was: the rest of the port can be used.
func readAddresses(column []string) (addresses []Address, unknown bool, err error) {
	column = slices.Sorted(slices.Values(column)) // sets have no order
	for _, text := range column {
		words := strings.Fields(text)
		switch {
		case len(words) == 0 || words[0] == "router" || words[0] == "dynamic":
			continue
		case words[0] == "unknown":
			unknown = true
			continue
		}
		var a Address
		wrong := a.MAC.UnmarshalText([]byte(words[0]))
		if wrong == nil && a.MAC.IsZero() {
			wrong = fmt.Errorf("mac %q is not a host's", words[0])
		}
		if wrong != nil {
			err = fmt.Errorf("%.80q: %w", text, wrong)
			continue
		}
		for _, word := range words[1:] {
			if word == "dynamic" {
				continue
			}
			ip, wrong := readIP(word)
			if wrong != nil {
				err = fmt.Errorf("%.80q: %w", text, wrong)
				break
			}
			if !slices.Contains(a.IPs, ip) {
				a.IPs = append(a.IPs, ip)
			}
		}
		addresses = append(addresses, a)
	}
	return addresses, unknown, err
}

// readIP reads an address, or one with the length of a prefix.
func readIP(word string) (netip.Addr, error) {
	ip, err := netip.ParseAddr(word)
	if strings.Contains(word, "/") {
		var prefix netip.Prefix
		prefix, err = netip.ParsePrefix(word)
		ip = prefix.Addr()
	}
	if err != nil || !usable(ip) {
		return netip.Addr{}, fmt.Errorf("%q is not an IP address", word)
	}
	return ip.Unmap(), nil
}

func usable(ip netip.Addr) bool {
	return ip.IsValid() && ip.Zone() == "" && !ip.Unmap().IsUnspecified()
}
