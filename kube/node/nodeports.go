package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"weir.io/weir/internal/config"
	"weir.io/weir/internal/model"
	"weir.io/weir/kube/v1alpha1"
)

// nodePortOwner is the owner of the set with node ports: no DirectorSet has it. Its errors do not
// affect forwarding at Services' own addresses.
func (d *director) nodePortOwner() string {
	return fmt.Sprintf("%s.%s.nodeports", d.prefix, d.group)
}

// atNodePort returns a Service's services at the address of a director's node: with the same
// backends and the same history, so that any director goes on with open connections. They have
// kernel sources, also for agents: the address is a host's own, and may be a backend's.
func (d *decoded) atNodePort(ports []v1alpha1.ServiceNodePort, address netip.Addr) (list []model.Document) {
	for i := range d.documents {
		s := d.documents[i].Service
		at := slices.IndexFunc(ports, func(p v1alpha1.ServiceNodePort) bool {
			return p.Protocol == s.Protocol.String() && p.Port == int32(s.Port.First)
		})
		if at < 0 || s.VIP.Is4() != address.Is4() || len(s.Backends) == 0 {
			continue // what cannot be sent to an agent is kube-proxy's
		}
		port := uint16(ports[at].NodePort)
		s.Name = fmt.Sprintf("%s@%s", s.Name, netip.AddrPortFrom(address, port))
		s.VIP, s.Port, s.KernelSources = address, model.PortRange{First: port, Last: port}, true
		list = append(list, model.Document{Service: s, Log: d.documents[i].Log})
	}
	return list
}

// nodePorts are what a director has at its node's addresses, with a key that differs from others';
// empty: nothing.
func (s *sets) nodePorts(addresses []netip.Addr) (is string, documents []model.Document) {
	var text strings.Builder
	fmt.Fprintln(&text, addresses)
	for _, name := range slices.Sorted(maps.Keys(s.decoded)) {
		d := s.decoded[name]
		if len(d.of.NodePorts) == 0 {
			continue
		}
		fmt.Fprintf(&text, "%s %d %x %v\n", name, d.of.Revision, d.sum, d.of.NodePorts)
		for _, a := range addresses {
			documents = append(documents, d.atNodePort(d.of.NodePorts, a)...)
		}
	}
	if len(documents) == 0 {
		return "", nil
	}
	return text.String(), documents
}

// takesNodePorts reports whether directors of the group should have node ports, and the sources
// that they leave to kube-proxy there are known.
func takesNodePorts(g *v1alpha1.DirectorGroup) bool {
	return g.Spec.NodePorts != nil && len(g.Status.KernelSources) > 0
}

// notYet is why a director has no node ports before it was given any.
const notYet = "they have not been put yet"

// putNodePorts gives the director Services' node ports at its node's addresses, or takes them out.
// If other sets of it have no room it goes without node ports: not has why these sets are not
// taken. lacksPorts stays for a director that does not answer: what it has goes on.
func (n *Node) putNodePorts(ctx context.Context, f *facts, not map[int]error) error {
	if n.role.group.Spec.NodePorts == nil {
		n.lacksPorts = ""
		return n.takeNodePortsOut(ctx)
	}
	if !n.answers.Load() {
		if !n.director.hasPorts() {
			n.lacksPorts = notYet + ": weir run does not answer"
		}
		return nil
	}
	is, documents := "", []model.Document(nil)
	why := n.noNodePorts(f, not)
	switch {
	case why != "":
	case !takesNodePorts(n.role.group):
		n.lacksPorts = "they stay as they are: it is not known yet whom directors leave to kube-proxy"
		return nil
	case len(n.sets.unread) > 0:
		n.lacksPorts = "they stay as they are: some Services cannot be read"
		return nil
	default:
		is, documents = n.sets.nodePorts(f.addresses())
	}
	var unread error
	if len(documents) > 0 {
		unread = n.readsFile(ctx)
	}
	err := unread
	if unread == nil || n.director.hasPorts() { // what it has must soon be replaced
		err = errors.Join(err, n.director.putPorts(ctx, is, documents))
	}
	if n.lacksPorts = why; err != nil {
		n.lacksPorts = oneLine(err)
	}
	return err
}

// takeNodePortsOut takes out what the director has, which another process may have put.
func (n *Node) takeNodePortsOut(ctx context.Context) error {
	d := &n.director
	if !n.answers.Load() {
		return nil
	}
	if d.ports == nil {
		owned, err := d.owned(ctx)
		if err != nil {
			return err
		}
		if owned[d.nodePortOwner()] == 0 {
			d.ports = new(string)
		}
	}
	return d.putPorts(ctx, "", nil)
}

// hasPorts reports whether the director is known to have node ports.
func (d *director) hasPorts() bool { return d.ports != nil && *d.ports != "" }

// putPorts puts node ports if they have changed. After an error it is not known what the director
// has.
func (d *director) putPorts(ctx context.Context, is string, documents []model.Document) error {
	if d.ports != nil && *d.ports == is {
		return nil
	}
	d.ports = nil
	if err := d.putOne(ctx, d.nodePortOwner(), documents); err != nil {
		return fmt.Errorf("put node ports to the director: %w", err)
	}
	d.ports = &is
	return nil
}

// leaves returns the sources that the director's file leaves to the kernel at node ports. As
// long as the director may have some, it never forgets them: it keeps the last ones.
func (n *Node) leaves(g *v1alpha1.DirectorGroup) []string {
	switch {
	case takesNodePorts(g):
		n.role.leaves = g.Status.KernelSources
	case n.director.ports != nil && !n.director.hasPorts():
		n.role.leaves = nil
	}
	return n.role.leaves
}

// leftBy returns the sources that an existing director's file leaves to the kernel; nil: none, or
// no file can be read.
func leftBy(path string) (list []string) {
	c, err := config.Load(path)
	if err != nil {
		return nil
	}
	for _, p := range c.Director.KernelSources {
		list = append(list, p.String())
	}
	return list
}

// readsFile says why the director does not leave the sources of its file to its kernel. Reading the
// file is not enough: it may be refused, or not applied yet.
func (n *Node) readsFile(ctx context.Context) error {
	d := &n.director
	if d.leaves != nil && slices.Equal(d.leaves, n.role.leaves) {
		return nil
	}
	d.leaves = nil
	runs, err := d.client.Config(ctx)
	if err != nil {
		return fmt.Errorf("ask the director whether it has read its file: %w", err)
	}
	if slices.EqualFunc(runs.Director.KernelSources, n.role.leaves, isWritten) {
		d.leaves = n.role.leaves
		return nil
	}
	status, err := d.client.Status(ctx)
	if err != nil {
		return fmt.Errorf("ask the director whether it has read its file: %w", err)
	}
	return fmt.Errorf("the director does not leave to kube-proxy yet whom its file says: %s", cmp.Or(status.Refused, "it is about to"))
}

// isWritten reports whether a text is a way to write this prefix, of which there are several.
func isWritten(p netip.Prefix, text string) bool {
	is, err := netip.ParsePrefix(text)
	return err == nil && is == p
}

// noNodePorts says why the node has none at all.
func (n *Node) noNodePorts(f *facts, not map[int]error) string {
	if n.elsewhere {
		return "the node is of another cluster than the Services, and has none of their node ports"
	}
	if len(f.addresses()) == 0 {
		return "the node has no address"
	}
	for _, number := range slices.Sorted(maps.Keys(not)) {
		if text := not[number].Error(); inTheWay(text, f.addresses()) {
			return "Services' own addresses come first: " + oneLine(not[number])
		}
	}
	return ""
}

// inTheWay reports whether a director does not take a set because of those with node ports: it has
// no room for both, or names a service there.
func inTheWay(text string, addresses []netip.Addr) bool {
	return strings.Contains(text, "director.limits.") || slices.ContainsFunc(addresses, func(a netip.Addr) bool {
		return strings.Contains(text, "@"+strings.TrimSuffix(netip.AddrPortFrom(a, 0).String(), "0"))
	})
}

// portsLinger is how long an agent knows node ports that directors no longer take: what a pod sends
// goes on to reach clients that had a connection there, and kube-proxy's reset answers it.
const portsLinger = 30 * time.Second

// nodePorts are the node ports that an agent knows, by Services.
type nodePorts map[string]lingering

type lingering struct {
	ports []v1alpha1.ServiceNodePort
	until time.Time
}

// of returns those of a Service, and remembers them.
func (p nodePorts) of(d *decoded, now time.Time) []v1alpha1.ServiceNodePort {
	if len(d.of.NodePorts) > 0 {
		p[d.of.Name] = lingering{d.of.NodePorts, now.Add(portsLinger)}
	}
	if l := p[d.of.Name]; now.Before(l.until) {
		return l.ports
	}
	delete(p, d.of.Name)
	return nil
}

// atDirectors returns a Service's services at the addresses of its group's directors, whose
// packets for node ports an agent has to know.
func (d *decoded) atDirectors(ports []v1alpha1.ServiceNodePort, addresses []netip.Addr) (list []model.Document) {
	if len(ports) == 0 {
		return nil
	}
	for _, a := range addresses {
		list = append(list, d.atNodePort(ports, a)...)
	}
	return list
}
