package group

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"weir.io/weir/internal/model"
)

// Settings are the values that each director of a group compares with those of the others, so
// that a wrong copy or a typing error on one host is noticed.
type Settings struct {
	// Values are those of each setting that is given, by its name.
	Values map[string][]string `json:"values,omitempty"`
	// Services are fingerprints of the services of the director's file.
	Services map[string]string `json:"services,omitempty"`
}

// compared are the settings.
var compared = []struct {
	name   string
	of     func(c *model.Config) []string // in a fixed order; none: it is not compared
	own    bool                           // each director has its own values; else all have the same
	danger string
}{
	{"director.snat.addresses", func(c *model.Config) []string { return texts(c.Director.SNAT.Addresses) }, true,
		"answers of full NAT's backends come to one of the two, and the other's connections break"},
	{"segments[].snat-addresses", func(c *model.Config) (all []string) {
		for i := range c.Segments {
			for _, a := range c.Segments[i].SNATAddresses {
				all = append(all, model.HostAddress{Segment: c.Segments[i].ID, Address: a}.String())
			}
		}
		return all
	}, true,
		"answers of full NAT's backends come to one of the two, and the other's connections break"},
	{"director.snat.announce", func(c *model.Config) []string {
		if len(c.Director.SNAT.Addresses) == 0 {
			return nil
		}
		return []string{strconv.FormatBool(c.Director.SNAT.Announce)}
	}, false,
		"if one of the two is lost, the other does not answer for its addresses, and full NAT's connections break"},
	{"bgp.router-id", func(c *model.Config) []string { return texts(valid(c.BGP.RouterID)) }, true,
		"routers may take the two for one, and forget what one of them announces"},
	{"director.group", func(c *model.Config) []string { return slices.Sorted(slices.Values(texts(c.Director.Group))) }, false,
		"fragments do not meet, and flows are not shared with all"},
	{"director.flow-port", func(c *model.Config) []string { return []string{strconv.Itoa(int(c.Director.FlowPortOrDefault()))} }, false,
		"the two cannot tell each other of flows"},
	{"notice", func(c *model.Config) []string { return []string{c.Notice.String()} }, false,
		"which notice a change has depends on the director that it is applied to"},
}

// mostServices bounds how many services of a file are compared: etcd keeps what is written for a
// while, and a group's services belong in sets.
const mostServices = 100

func valid(a netip.Addr) []netip.Addr {
	if !a.IsValid() {
		return nil
	}
	return []netip.Addr{a}
}

func texts[T fmt.Stringer](list []T) []string {
	all := make([]string, len(list))
	for i := range list {
		all[i] = list[i].String()
	}
	return all
}

// SettingsOf returns what a director with a file tells the others. The fingerprints of its services
// are those of PlacingOf.
func SettingsOf(c *model.Config, services map[string]string) Settings {
	s := Settings{Values: map[string][]string{}, Services: services}
	for _, one := range compared {
		if values := one.of(c); len(values) > 0 {
			s.Values[one.name] = values
		}
	}
	return s
}

// PlacingOf returns the fingerprints of a file's services. It takes long where these are many.
func PlacingOf(list []model.Service) map[string]string {
	services := map[string]*model.Service{}
	for i := range list {
		service := &list[i]
		id := fmt.Sprintf("%v:%v/%v", service.VIP, service.Port, service.Protocol)
		if service.Segment != (model.Segment{}) {
			id += fmt.Sprintf(" in %v", service.Segment)
		}
		services[id] = service
	}
	found := map[string]string{}
	for _, id := range slices.Sorted(maps.Keys(services))[:min(mostServices, len(services))] {
		found[id] = placing(services[id])
	}
	return found
}

// placing is a fingerprint of what decides which backend gets a connection, and how it gets there. A
// backend that is drained or down on one director alone, checks, and the way from a director to a
// backend (next hop, tag and MTU) are each director's own. What means the same is written the same.
func placing(s *model.Service) string {
	of := *s
	of.Name, of.Health, of.MinHealthy, of.Backends = "", nil, nil, slices.Clone(s.Backends)
	of.SourceRanges, of.RedirectTo = sorted(s.SourceRanges), sorted(s.RedirectTo)
	of.QUIC = slices.SortedFunc(slices.Values(s.QUIC), func(a, b model.QUICConfig) int { return cmp.Compare(a.ID, b.ID) })
	if s.Mode == model.Redirect {
		fallback := s.PacketMode()
		of.Fallback = &fallback
	} else {
		of.Mode = 0 // the backends below have it
	}
	for i := range of.Backends {
		b := &of.Backends[i]
		b.Name, b.State, b.MTU, b.MAC, b.VLAN, b.Interface = "", 0, 0, model.MAC{}, 0, ""
		if s.Mode != model.Redirect { // there only a backend without a mode of its own is redirected
			mode := b.ModeIn(*s)
			b.Mode = &mode
		}
		for id := range b.ServerID {
			if !slices.ContainsFunc(s.QUIC, func(c model.QUICConfig) bool { return int(c.ID) == id }) {
				b.ServerID[id] = "" // nobody reads it
			}
		}
	}
	slices.SortFunc(of.Backends, func(a, b model.Backend) int { return a.Endpoint().Compare(b.Endpoint()) })
	text, err := json.Marshal(model.StoredService(of))
	if err != nil {
		return "" // it is not compared
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:8])
}

// sorted returns prefixes in an order that does not depend on the file.
func sorted(prefixes []netip.Prefix) []netip.Prefix {
	return slices.Compact(slices.SortedFunc(slices.Values(prefixes), netip.Prefix.Compare))
}

// settings compares them. The same has to be found in two writings of a director: directors do not
// read a changed file at the same moment, and a process that has ended writes nothing more. So what
// this process, or the one before it, wrote by another address is not taken for another director's.
type settings map[string]*finding // by the text that tells it

// finding is what is wrong with another director's settings.
type finding struct {
	wrote time.Time // by that director's clock, what it was found in first
	again bool      // a later writing has it, too
}

// compare takes what all directors have written, and returns what does not go together with this
// one.
func (s settings) compare(runs []writtenRun, own *writtenRun) error {
	before := maps.Clone(s)
	clear(s)
	var certain []error
	for i := range runs {
		r := &runs[i]
		if slices.Contains(own.Also, r.Address) || r.again(runs[:i]) {
			continue
		}
		if r.Version != own.Version {
			r.Settings.Services = nil // the other version's fingerprints may be made of other fields
		}
		for _, text := range own.Settings.differ(r.Settings, r.Address) {
			is := before[text]
			if is == nil {
				is = &finding{wrote: r.Clock}
			}
			if is.again = is.again || !is.wrote.Equal(r.Clock); is.again {
				certain = append(certain, errors.New(text))
			}
			s[text] = is
		}
	}
	return errors.Join(certain...)
}

// again says whether a director has written the same under another of its addresses.
func (r *writtenRun) again(before []writtenRun) bool {
	return slices.ContainsFunc(before, func(o writtenRun) bool { return slices.Contains(r.Also, o.Address) })
}

// differ says what is wrong with another director's settings beside these.
func (s Settings) differ(other Settings, at netip.Addr) (found []string) {
	for _, one := range compared {
		here, there := s.Values[one.name], other.Values[one.name]
		switch {
		case len(here) == 0 || len(there) == 0: // one of the two does not use it, or is of another version
		case one.own:
			if both := slices.DeleteFunc(slices.Clone(here), func(v string) bool { return !slices.Contains(there, v) }); len(both) > 0 {
				found = append(found, fmt.Sprintf("director %v has the same %s as this one, %s: %s. Give each director its own", at, one.name, strings.Join(both, ", "), one.danger))
			}
		case !slices.Equal(here, there):
			found = append(found, fmt.Sprintf("director %v has %s %s, and this one %s: %s. Give all directors the same", at, one.name, strings.Join(there, ", "), strings.Join(here, ", "), one.danger))
		}
	}
	var others []string
	for id, here := range s.Services {
		if there, has := other.Services[id]; has && here != there && here != "" && there != "" {
			others = append(others, id)
		}
	}
	if slices.Sort(others); len(others) > 0 {
		found = append(found, fmt.Sprintf("director %v has other backends or settings for services of its file than this one, such as %s: connections may break when they reach the other director. Put the group's services into sets (weir apply), or give both files the same", at, others[0]))
	}
	return found
}
