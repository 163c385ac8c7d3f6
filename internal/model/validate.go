package model

import (
	"net/netip"
	"strings"
	"unicode"
	"unicode/utf8"
)

// MaxNameLength bounds the names of services and backends, in bytes.
const MaxNameLength = 253

// Validate returns everything that is wrong with the configuration as
// FieldErrors, or nil. It expects defaults to be set (SetDefaults).
func (c Config) Validate() error { return c.ValidateShared(len(c.Services)) }

// ValidateShared does what Validate does, for a configuration whose first own services are this
// director's; it shares the others with its group.
func (c Config) ValidateShared(own int) error {
	return c.ValidateChanged(own, func(int) bool { return false })
}

// ValidateChanged does what ValidateShared does, for services of which some are known to be valid
// by themselves: they were valid in a configuration that differs from this one only in services.
func (c Config) ValidateChanged(own int, known func(i int) bool) error {
	v := validation{config: &c, own: own}
	v.director()
	v.agent()
	v.directors()
	v.duration("coalesce", c.Coalesce, minCoalesce, maxCoalesce)
	v.duration("notice", c.Notice, minNotice, maxNotice)
	v.duration("suspect", c.Suspect, minSuspect, maxSuspect)
	v.bgp()
	v.bfd()
	v.hooks()
	v.api()
	v.loads()
	for i := range c.Services {
		if !known(i) {
			v.service(i)
		}
	}
	v.serviceNames()
	v.ports()
	v.addresses()
	v.ownAddresses()
	v.replies()
	v.limits()
	if len(v.errs) == 0 {
		return nil
	}
	return v.errs
}

// validation collects the problems of one configuration.
type validation struct {
	config *Config
	own    int // the director's own services; the group's follow
	errs   FieldErrors
}

// nameProblem says what is wrong with the name of a service or backend. Names end up in tables,
// labels and paths, where white space and control characters would do harm.
func nameProblem(name string) string {
	switch {
	case name == "":
		return "is required"
	case len(name) > MaxNameLength:
		return "is longer than 253 bytes"
	case !utf8.ValidString(name):
		return "is not valid UTF-8"
	case strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsGraphic(r) || unicode.IsSpace(r) }):
		return "contains white space or a control character"
	}
	return ""
}

// AddressProblem says why an address cannot be a backend's, or nothing.
func AddressProblem(a netip.Addr) string { return addressProblem(a) }

// addressProblem says why packets cannot travel to an address through routers, or nothing.
func addressProblem(a netip.Addr) string {
	switch {
	case !a.IsValid():
		return "is required"
	case a.Is4In6():
		return "is an IPv4 address in IPv6 clothing; write " + a.Unmap().String()
	case a.Zone() != "":
		return "has a zone; weir takes addresses that are valid on every link"
	case a.IsUnspecified() || a.Is4() && a.As4()[0] == 0:
		return "is not the address of a host"
	case a.IsLoopback():
		return "is a loopback address, which no packet on a wire may have"
	case a.IsMulticast():
		return "is a multicast address"
	case a.IsLinkLocalUnicast():
		return "is link-local; weir takes addresses that are valid on every link"
	case a.Is4() && a.As4()[0] >= 240:
		return "is in 240.0.0.0/4, which is reserved"
	}
	return ""
}

func family(a netip.Addr) string {
	if a.Is4() {
		return "IPv4"
	}
	return "IPv6"
}
