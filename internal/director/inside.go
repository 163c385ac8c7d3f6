package director

import (
	"fmt"
	"net/netip"
	"slices"

	"weir.io/weir/internal/explain"
	"weir.io/weir/internal/model"
)

// frameOf makes up the packet that a question is about, and the interface that it comes in by.
func (d *Director) frameOf(q *model.Question) (name string, frame []byte, made *model.ExplainedTunnel, err error) {
	var tunnel *explain.Tunnel
	from := q.Source.Addr()
	if q.Segment.IsOverlay() && len(q.Frame) == 0 {
		if tunnel, err = d.tunnelOf(q); err != nil {
			return "", nil, nil, err
		}
		from = tunnel.From
		made = &model.ExplainedTunnel{Wire: tunnel.Wire, VTEP: tunnel.From, Source: q.Source.Addr().Unmap(), Known: tunnel.Known}
	}
	name, mac, err := d.kernel.Entrance(q.Interface, from)
	if err != nil {
		return "", nil, nil, err
	}
	if tunnel != nil {
		frame, err = explain.BuildInside(q, tunnel, mac)
	} else {
		frame, err = explain.Build(q, mac)
	}
	return name, frame, made, err
}

// tunnelOf says in which tunnel a packet of a tenant's network would come: from where its source is, or else from
// some VTEP of which packets of the network are taken.
func (d *Director) tunnelOf(q *model.Question) (*explain.Tunnel, error) {
	c := d.Config()
	status := d.segments.Status(&c)
	at := slices.IndexFunc(status.Segments, func(s model.SegmentStatus) bool { return s.ID == q.Segment })
	if at < 0 {
		return nil, fmt.Errorf("segment: this director does not know %s", q.Segment)
	}
	known := &status.Segments[at]
	own := &c.Director.VTEP
	t := &explain.Tunnel{Wire: model.Segment{Kind: q.Segment.Kind, ID: known.VNI}, Port: own.VXLANPort, VLAN: own.VLAN, MAC: known.MAC}
	if q.Segment.Kind == model.SegmentGeneve {
		t.Port = own.GenevePort
	}
	var vteps []netip.Addr
	var source netip.Addr // the VTEP where the packet's source is
	for i := range known.Hosts {
		if h := &known.Hosts[i]; h.Address == q.Source.Addr().Unmap() {
			vteps, source = slices.Insert(vteps, 0, h.VTEP), h.VTEP
		} else {
			vteps = append(vteps, h.VTEP)
		}
	}
	for i := range c.Services {
		s := &c.Services[i]
		for j := range s.Backends {
			if b := &s.Backends[j]; b.VTEP.IsValid() && b.TenantIn(s) == q.Segment {
				vteps = append(vteps, b.VTEP)
			}
		}
	}
	for _, vtep := range vteps {
		if to := own.Address(vtep.Is6()); to.IsValid() && vtep != to {
			t.From, t.To, t.Known = vtep, to, vtep == source
			return t, nil
		}
	}
	return nil, fmt.Errorf("segment: no VTEP of %s is known from which its packet could come: ask about a frame in its tunnel (--pcap)", q.Segment)
}
