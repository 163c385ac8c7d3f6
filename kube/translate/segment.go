package translate

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"weir.io/weir/internal/model"
	"weir.io/weir/kube/v1alpha1"
)

// Segment is a tenant's network of a DirectorGroup that was read.
type Segment struct {
	rights
	Settings model.SegmentSettings // without what is each director's own
	vips     []netip.Prefix        // that VIPs are to be in; none: any
}

// members are servers outside of segments that LoadBalancers may have as members.
type members struct {
	rights
	addresses []netip.Prefix
}

// rights say which namespaces may use something.
type rights struct {
	names  []string
	labels labels.Selector // nil: none by their labels
}

// readRights reads them at a place of a group's.
func readRights(at string, namespaces []string, by *metav1.LabelSelector) (r rights, err error) {
	r.names = namespaces
	if by != nil {
		r.labels, err = selector(at+".namespaceSelector", by)
	}
	return r, err
}

// admits reports whether a namespace with these labels has them.
func (r *rights) admits(namespace string, has map[string]string) bool {
	return slices.Contains(r.names, namespace) || r.labels != nil && r.labels.Matches(labels.Set(has))
}

// hasVIP reports whether a VIP may be in the segment.
func (s *Segment) hasVIP(a netip.Addr) bool {
	return len(s.vips) == 0 || slices.ContainsFunc(s.vips, func(p netip.Prefix) bool { return p.Contains(a) })
}

// Segment returns what the group says of a segment; nil: nothing.
func (g *DirectorGroup) Segment(id model.Segment) *Segment {
	if at := slices.IndexFunc(g.segments, func(s *Segment) bool { return s.Settings.ID == id }); at >= 0 {
		return g.segments[at]
	}
	return nil
}

// refusesVTEP says why a member in a segment may not be behind a VTEP; empty: it may. Directors take packets
// from members' VTEPs in all networks that have no peers of their own, so the group's administrator has to
// trust a VTEP for each of these.
func (g *DirectorGroup) refusesVTEP(s *Segment, vtep netip.Addr) string {
	trusts := func(p netip.Prefix) bool { return p.Contains(vtep) }
	if !vtep.IsValid() || slices.ContainsFunc(g.peers, trusts) {
		return ""
	}
	if !slices.ContainsFunc(s.Settings.Peers, trusts) {
		return fmt.Sprintf("%s is in none of the peers of segment %s and of vtep in DirectorGroup %s, the VTEPs that members may be behind", vtep, s.Settings.ID, g.Of.Name)
	}
	for _, other := range g.segments {
		if id := other.Settings.ID; id.IsOverlay() && len(other.Settings.Peers) == 0 {
			return fmt.Sprintf("%s is in the peers of segment %s alone, and segment %s of DirectorGroup %s has no peers: its packets would be taken from there, too", vtep, s.Settings.ID, id, g.Of.Name)
		}
	}
	return ""
}

// hasOwn reports whether all directors that the group names in a segment have an address of a family
// there, and it names some.
func (g *DirectorGroup) hasOwn(id model.Segment, six bool) bool {
	for i := range g.Of.Spec.Segments {
		of := &g.Of.Spec.Segments[i]
		if string(of.ID) != id.String() {
			continue
		}
		lacks := slices.ContainsFunc(of.Directors, func(d v1alpha1.DirectorInSegment) bool {
			return !slices.ContainsFunc(d.Addresses, func(a v1alpha1.Address) bool { return strings.Contains(string(a), ":") == six })
		})
		return len(of.Directors) > 0 && !lacks
	}
	return false
}

// OwnInSegments returns all addresses that a group's directors have of their own in segments.
func OwnInSegments(g *v1alpha1.DirectorGroup) (list []netip.Addr) {
	for i := range g.Spec.Segments {
		for j := range g.Spec.Segments[i].Directors {
			own, err := addresses("", g.Spec.Segments[i].Directors[j].Addresses)
			if err == nil {
				list = append(list, own...)
			}
		}
	}
	slices.SortFunc(list, netip.Addr.Compare)
	return slices.Compact(list)
}

// readSegments reads the segments of a group and its VTEP's peers, and checks them by the rules of a director's
// file.
func (read *DirectorGroup) readSegments() (err error) {
	g := read.Of
	c := model.Config{Director: model.Director{Interfaces: g.Spec.Interfaces}}
	if g.Spec.VTEP != nil { // at addresses of both families, as a node may have them
		if c.Director.VTEP, err = VTEPOf(g, netip.AddrFrom4([4]byte{192, 0, 2, 1}), netip.MustParseAddr("2001:db8::1")); err != nil {
			return err
		}
	}
	if c.OVN, err = ovnOf(g); err != nil {
		return err
	}
	if c.Segments, err = SegmentsOf(g, ""); err != nil {
		return err
	}
	if l := g.Spec.Limits; l != nil {
		c.Director.Limits.Flows = uint32(l.Flows)
	}
	if l := SegmentLimitsOf(g.Spec.SegmentLimits); l != nil {
		c.Director.SegmentLimits = *l
	}
	c.SetDefaults()
	var errs model.FieldErrors
	if errors.As(c.Validate(), &errs) {
		for _, e := range errs {
			at, is := strings.CutPrefix(e.Path, "director.")
			if is || strings.HasPrefix(e.Path, "segments[") || strings.HasPrefix(e.Path, "ovn.") {
				return fmt.Errorf("spec.%s: %s", strings.Replace(at, "segment-limits", "segmentLimits", 1), e.Problem)
			}
		}
	}
	for i := range g.Spec.Segments {
		of := &g.Spec.Segments[i]
		s := &Segment{Settings: c.Segments[i]}
		if s.rights, err = readRights(fmt.Sprintf("spec.segments[%d]", i), of.Namespaces, of.NamespaceSelector); err != nil {
			return err
		}
		if s.vips, err = prefixes(fmt.Sprintf("spec.segments[%d].addresses", i), of.Addresses); err != nil {
			return err
		}
		read.segments = append(read.segments, s)
	}
	read.peers = c.Director.VTEP.Peers
	return nil
}

// readMembers reads which servers outside of segments the group's LoadBalancers may have.
func (read *DirectorGroup) readMembers() (err error) {
	for i := range read.Of.Spec.Members {
		of, m, at := &read.Of.Spec.Members[i], members{}, fmt.Sprintf("spec.members[%d]", i)
		if m.rights, err = readRights(at, of.Namespaces, of.NamespaceSelector); err != nil {
			return err
		}
		if m.addresses, err = prefixes(at+".addresses", of.Addresses); err != nil {
			return err
		}
		read.members = append(read.members, m)
	}
	return nil
}

// mayReach reports whether LoadBalancers of a namespace with these labels may have an address outside of
// segments as a member's.
func (g *DirectorGroup) mayReach(a netip.Addr, namespace string, has map[string]string) bool {
	return slices.ContainsFunc(g.members, func(m members) bool {
		return m.admits(namespace, has) && slices.ContainsFunc(m.addresses, func(p netip.Prefix) bool { return p.Contains(a) })
	})
}

// VTEPOf returns where tunnels end at a group's director that has these addresses; the zero value:
// nowhere.
func VTEPOf(g *v1alpha1.DirectorGroup, own ...netip.Addr) (v model.VTEP, err error) {
	of := g.Spec.VTEP
	if of == nil {
		return v, nil
	}
	v = model.VTEP{Addresses: own, VLAN: uint16(of.VLAN), VXLANPort: uint16(of.VXLANPort), GenevePort: uint16(of.GenevePort)}
	v.VXLANPort, v.GenevePort = cmp.Or(v.VXLANPort, model.DefaultVXLANPort), cmp.Or(v.GenevePort, model.DefaultGenevePort)
	v.Peers, err = prefixes("spec.vtep.peers", of.Peers)
	return v, err
}

// SegmentsOf returns what a group's director on a node knows of tenants' networks.
func SegmentsOf(g *v1alpha1.DirectorGroup, node string) (list []model.SegmentSettings, err error) {
	for i := range g.Spec.Segments {
		of, in := &g.Spec.Segments[i], fmt.Sprintf("spec.segments[%d].", i)
		s := model.SegmentSettings{Interface: of.Interface, VNI: uint32(of.VNI), MTU: uint16(of.MTU), Network: of.Network}
		s.Limits = SegmentLimitsOf(of.Limits)
		texts := []text{{"id", string(of.ID), &s.ID}}
		if s.Peers, err = prefixes(in+"peers", of.Peers); err != nil {
			return nil, err
		}
		if s.Gateway, err = addresses(in+"gateway", of.Gateway); err != nil {
			return nil, err
		}
		s.Hosts = make([]model.SegmentHost, len(of.Hosts))
		for j := range of.Hosts {
			h, at := &of.Hosts[j], fmt.Sprintf("hosts[%d].", j)
			texts = append(texts, text{at + "address", string(h.Address), &s.Hosts[j].Address}, text{at + "mac", h.MAC, &s.Hosts[j].MAC}, text{at + "vtep", string(h.VTEP), &s.Hosts[j].VTEP})
		}
		for j := range of.Directors {
			d, at := &of.Directors[j], fmt.Sprintf("directors[%d].", j)
			own, err := addresses(in+at+"addresses", d.Addresses)
			if err != nil {
				return nil, err
			}
			if d.Node == node {
				s.Addresses = own
				texts = append(texts, text{at + "mac", d.MAC, &s.MAC})
			}
		}
		if err := readTexts(in, texts); err != nil {
			return nil, err
		}
		list = append(list, s)
	}
	return list, nil
}

// SegmentLimitsOf returns limits of segments as a director's file has them; nil: there are none.
func SegmentLimitsOf(l *v1alpha1.DirectorSegmentLimits) *model.SegmentLimits {
	if l == nil {
		return nil
	}
	return &model.SegmentLimits{SegmentQuota: model.SegmentQuota{Flows: uint32(l.Flows), PacketsPerSecond: uint32(l.PacketsPerSecond)}}
}

// addresses reads a list of addresses.
func addresses(at string, list []v1alpha1.Address) (read []netip.Addr, err error) {
	for i, one := range list {
		a, err := netip.ParseAddr(string(one))
		if err != nil {
			return nil, fmt.Errorf("%s[%d]: %w", at, i, err)
		}
		read = append(read, a)
	}
	return read, nil
}

// prefixes reads a list of prefixes.
func prefixes(at string, list []v1alpha1.SourceRange) (read []netip.Prefix, err error) {
	for i, one := range list {
		p, err := netip.ParsePrefix(string(one))
		if err != nil {
			return nil, fmt.Errorf("%s[%d]: %w", at, i, err)
		}
		read = append(read, p.Masked())
	}
	return read, nil
}
