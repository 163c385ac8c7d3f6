package node

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"time"

	"weir.io/weir/internal/config"
	"weir.io/weir/internal/model"
	"weir.io/weir/kube/group"
	"weir.io/weir/kube/translate"
	"weir.io/weir/kube/v1alpha1"
)

// coalesce is the coalesce of the director's file: the controller and this sidecar, which gives the
// director one set after the other, have already waited for changes that belong together.
const coalesce = model.Duration(5 * time.Millisecond)

// announced is what a director tells others about VIPs.
type announced struct {
	active    bool              // it tells routers
	vips      []group.VIP       // VIPs that it answers for by ARP and NDP
	passwords map[string]string // the files of peers' passwords, by the peers' names; a peer without one that it needs is left out
	ovn       certificate       // the files of OVN's TLS
}

// file returns the configuration file of a node's director, which is checked, and leaves some to
// the kernel at node ports.
func file(g *v1alpha1.DirectorGroup, peers []*translate.BGPPeer, f *facts, told announced, leaves []string, state string) ([]byte, error) {
	director := map[string]any{"interfaces": g.Spec.Interfaces, "limits": limits(g.Spec.Limits)}
	all := map[string]any{"coalesce": coalesce, "director": director, "services": []any{}}
	if addresses := f.addresses(); len(addresses) > 0 {
		director["snat"] = map[string]any{"addresses": f.Overlay.sources(f), "ports": g.Spec.SNATPorts}
		all["directors"] = append(addresses, translate.OwnInSegments(g)...) // the addresses that tunnels come from, which agents have to know
	}
	if len(g.Spec.ReplyInterfaces) > 0 {
		director["reply-interfaces"] = g.Spec.ReplyInterfaces
	}
	if len(leaves) > 0 {
		director["kernel-sources"] = leaves
	}
	if f.Pod {
		director["interfaces"], director["xdp"] = []string{detourDirector}, model.XDPGeneric
	}
	if state != "" {
		director["store"] = map[string]any{"directory": state}
	}
	if n := neighbor(g, told.vips); len(n.Interfaces) > 0 {
		director["neighbor"] = n
	}
	if err := tenants(g, f, told.ovn, director, all); err != nil {
		return nil, err
	}
	if b := speaker(g, peers, f, told); b != nil {
		all["bgp"] = b
	}
	text, err := written("weir.yaml", "Written by weir-kube node for DirectorGroup "+g.Name+".", all)
	if err != nil {
		return nil, fmt.Errorf("what follows from DirectorGroup %s is no director's file: %w", g.Name, err)
	}
	return text, nil
}

// written returns a file as weir reads it, which is checked: a comment, and JSON, which is YAML.
func written(name, comment string, content map[string]any) ([]byte, error) {
	text, err := json.MarshalIndent(content, "", "  ")
	if err != nil {
		return nil, err
	}
	text = fmt.Appendf(nil, "# %s\n%s\n", comment, text)
	_, err = config.Parse(name, text)
	return text, err
}

func limits(l *v1alpha1.DirectorLimits) map[string]any {
	given := map[string]any{}
	if l == nil {
		return given
	}
	for name, value := range map[string]int64{"services": int64(l.Services), "backends": int64(l.Backends), "ring-memory": l.RingMemory, "flows": int64(l.Flows), "source-ranges": int64(l.SourceRanges)} {
		if value > 0 {
			given[name] = value
		}
	}
	return given
}

// tenants adds where the director's tunnels end, and what it knows of tenants' networks.
func tenants(g *v1alpha1.DirectorGroup, f *facts, files certificate, director, all map[string]any) error {
	vtep, err := translate.VTEPOf(g, f.addresses()...)
	if err != nil {
		return fmt.Errorf("read DirectorGroup %s: %w", g.Name, err)
	}
	if vtep.Given() {
		director["vtep"] = vtep
	}
	segments, err := translate.SegmentsOf(g, f.Name)
	if err != nil {
		return fmt.Errorf("read DirectorGroup %s: %w", g.Name, err)
	}
	if !vtep.Given() { // the node has no address yet
		segments = slices.DeleteFunc(segments, func(s model.SegmentSettings) bool { return s.ID.IsOverlay() })
	}
	if len(segments) > 0 {
		all["segments"] = segments
	}
	// Also while the files are not there: a network without OVN would have the VNI of its ID, which may be another
	// tenant's.
	if o := translate.OVNOf(g, f.Name); o.Given() && vtep.Given() {
		if o.Secure {
			o.CA, o.Cert, o.Key = files.ca, files.cert, files.key
		}
		all["ovn"] = o.OVN
	}
	if l := translate.SegmentLimitsOf(g.Spec.SegmentLimits); l != nil {
		director["segment-limits"] = l
	}
	return nil
}

// neighbor lets it answer for VIPs by ARP and NDP, each by itself, those in VLANs inside these. In
// VXLAN and Geneve each director answers without that.
func neighbor(g *v1alpha1.DirectorGroup, vips []group.VIP) (n model.Neighbor) {
	if g.Spec.Neighbor == nil {
		return n
	}
	names := g.Spec.Neighbor.Interfaces
	if len(names) == 0 {
		names = g.Spec.Interfaces
	}
	prefixes := map[model.Segment][]netip.Prefix{}
	for _, vip := range vips {
		prefixes[vip.Segment] = append(prefixes[vip.Segment], netip.PrefixFrom(vip.Address, vip.Address.BitLen()))
	}
	for _, segment := range slices.SortedFunc(maps.Keys(prefixes), model.Segment.Compare) {
		on := names
		if segment.IsOverlay() {
			continue
		}
		for i := range g.Spec.Segments {
			if s := &g.Spec.Segments[i]; string(s.ID) == segment.String() && s.Interface != "" {
				on = []string{s.Interface}
			}
		}
		for _, name := range on {
			n.Interfaces = append(n.Interfaces, model.NeighborInterface{Name: name, Segment: segment, Prefixes: prefixes[segment]})
		}
	}
	return n
}

// speaker tells the peers; nil: none. A standby node also keeps
// sessions with them, and tells them nothing: so it need not wait for sessions when its turn comes.
func speaker(g *v1alpha1.DirectorGroup, peers []*translate.BGPPeer, f *facts, told announced) *model.BGP {
	if g.Spec.BGP == nil {
		return nil
	}
	b := &model.BGP{ASN: uint32(g.Spec.BGP.ASN), RouterID: f.RouterID}
	for _, p := range peers {
		if p.Valid(g.Spec.BGP.ASN) != nil {
			continue
		}
		n := p.Neighbor
		if p.Of.Spec.PasswordSecret != "" {
			if n.PasswordFile = told.passwords[p.Of.Name]; n.PasswordFile == "" {
				continue
			}
		}
		b.Neighbors = append(b.Neighbors, n)
	}
	if len(b.Neighbors) == 0 {
		return nil
	}
	// Its own addresses are VIPs where it has node ports.
	for _, a := range f.addresses() {
		b.Prefixes = append(b.Prefixes, model.BGPPrefix{Prefix: netip.PrefixFrom(a, a.BitLen()), Announce: model.AnnounceNothing})
	}
	if in, err := translate.SegmentsOf(g, f.Name); err == nil && !told.active {
		for _, all := range []string{"0.0.0.0/0", "::/0"} {
			b.Prefixes = append(b.Prefixes, model.BGPPrefix{Prefix: netip.MustParsePrefix(all), Announce: model.AnnounceNothing})
			for i := range in {
				b.Prefixes = append(b.Prefixes, model.BGPPrefix{Segment: in[i].ID, Prefix: netip.MustParsePrefix(all), Announce: model.AnnounceNothing})
			}
		}
	}
	return b
}

// replace makes a text the file's, in one step.
func replace(path string, text []byte) error {
	if before, err := os.ReadFile(path); err == nil && bytes.Equal(before, text) {
		return nil
	}
	next, err := os.CreateTemp(filepath.Dir(path), ".weir-kube-")
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	defer os.Remove(next.Name()) // which no longer exists after success
	if _, err = next.Write(text); err == nil {
		err = next.Sync()
	}
	if closed := next.Close(); err == nil {
		err = closed
	}
	if err == nil {
		err = os.Rename(next.Name(), path)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}
