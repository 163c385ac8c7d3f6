package node

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"weir.io/weir/internal/config"
	"weir.io/weir/internal/model"
	"weir.io/weir/kube/translate"
	"weir.io/weir/kube/v1alpha1"
)

// coalesce is the coalesce of the director's file: the controller and this sidecar, which gives the
// director one set after the other, have already waited for changes that belong together.
const coalesce = model.Duration(5 * time.Millisecond)

// announced is what a director tells others about VIPs.
type announced struct {
	active    bool              // it tells routers
	vips      []netip.Addr      // VIPs that it answers for by ARP and NDP
	passwords map[string]string // the files of peers' passwords, by the peers' names; a peer without one that it needs is left out
}

// file returns the configuration file of a node's director, which is checked, and leaves some to
// the kernel at node ports.
func file(g *v1alpha1.DirectorGroup, peers []*translate.BGPPeer, f *facts, told announced, leaves []string, state string) ([]byte, error) {
	director := map[string]any{"interfaces": g.Spec.Interfaces, "limits": limits(g.Spec.Limits)}
	all := map[string]any{"coalesce": coalesce, "director": director, "services": []any{}}
	if addresses := f.addresses(); len(addresses) > 0 {
		director["snat"] = map[string]any{"addresses": f.Overlay.sources(f), "ports": g.Spec.SNATPorts}
		all["directors"] = addresses // the addresses that tunnels come from, which agents have to know
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
	if g.Spec.Neighbor != nil && len(told.vips) > 0 {
		director["neighbor"] = neighbor(g, told.vips)
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

// neighbor lets it answer for VIPs by ARP and NDP, each by itself.
func neighbor(g *v1alpha1.DirectorGroup, vips []netip.Addr) model.Neighbor {
	names := g.Spec.Neighbor.Interfaces
	if len(names) == 0 {
		names = g.Spec.Interfaces
	}
	prefixes := make([]netip.Prefix, len(vips))
	for i, vip := range vips {
		prefixes[i] = netip.PrefixFrom(vip, vip.BitLen())
	}
	var n model.Neighbor
	for _, name := range names {
		n.Interfaces = append(n.Interfaces, model.NeighborInterface{Name: name, Prefixes: prefixes})
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
	if !told.active {
		for _, all := range []string{"0.0.0.0/0", "::/0"} {
			b.Prefixes = append(b.Prefixes, model.BGPPrefix{Prefix: netip.MustParsePrefix(all), Announce: model.AnnounceNothing})
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
