// Package node makes one node's director do what the controller says: it writes the director's
// file, gives it what its group forwards, and tells the controller about the node. A lost API
// server changes nothing: what was last read stays.
package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordinationv1client "k8s.io/client-go/kubernetes/typed/coordination/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"weir.io/weir/internal/api"
	"weir.io/weir/kube/follow"
	"weir.io/weir/kube/group"
	"weir.io/weir/kube/translate"
	"weir.io/weir/kube/v1alpha1"
)

const (
	again      = time.Second            // everything is compared again
	together   = 10 * time.Millisecond  // the wait for changes that may belong together
	reconnect  = 100 * time.Millisecond // a director that does not answer is asked again
	asking     = time.Minute            // one request of the director may take
	secretPace = 10 * time.Second       // a peer's password is looked for again
)

// Options say which node it is.
type Options struct {
	Group, Node string // the group may be empty if the node has only an agent, which is told of all groups
	Pod         *Pod   // that takes the node's place, whose object is not read; nil: it is the node
	Namespace   string // of Leases, and of Secrets with passwords; a pod's own
	Owner       string // the first part of the owners of sets
	Socket      string // of the director; empty: the node has none, but an agent
	File        string // the director's
	AgentFile   string // of the node's weir agent; empty: none is written
	AgentSocket string // the agent's; empty: the controller is not told whether it runs

	// The interfaces in the agent's file; none: the agent's defaults.
	AgentInterfaces, AgentReplies []string

	State string // the director's directory of state; empty: weir's default
}

// Node is the sidecar of one director. Use New.
type Node struct {
	Options
	log         *slog.Logger
	core        corev1client.CoreV1Interface
	leaseWriter *leaseWriter
	director    director

	agentLease lease
	agentRan   time.Time // when it last ran; zero: it was not seen running
	elsewhere  bool      // the Node is in another cluster

	group, set, peer, node cache.SharedIndexInformer // node is nil for a pod, and peer where there is no director
	moved                  chan struct{}
	answers                atomic.Bool // the director answers
	restarted              atomic.Bool // it may be another process, which has forgotten what was put

	sets     sets
	answered time.Time // when the director last answered, or this process began to ask it
	role     role
	taken    taken
	// lacksPorts says why its director lacks node ports that it should have; empty: it has them.
	lacksPorts string
	passwords  map[string]password
	ovn        certificate
	sessions   sessions
	report     report
	tunnels    tunnels
	ports      nodePorts // that the agent knows
	ways       *looker
	overlay    overlay // in its last state
	// forwarding is until when groups forward, by their names, as far as is known.
	forwarding map[string]time.Time
	said       string // the last problem, which is logged once
}

// New returns a sidecar that reads the group with one configuration, and the Node with another:
// directors may be in another cluster.
func New(config, nodes *rest.Config, o Options, log *slog.Logger) (*Node, error) {
	resources, err1 := follow.Resources(config)
	core, err2 := corev1client.NewForConfig(config)
	coordination, err3 := coordinationv1client.NewForConfig(config)
	local, err4 := corev1client.NewForConfig(nodes)
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		return nil, fmt.Errorf("make a client of the API server: %w", err)
	}
	if o.Pod != nil {
		o.Node = o.Pod.Name
	}
	leases := coordination.Leases(o.Namespace)
	n := &Node{Options: o, log: log, core: core, leaseWriter: newLeaseWriter(directorLease(leases, o.Group, o.Node)), agentLease: agentLease(leases, o.Node), elsewhere: config != nodes,
		director: director{client: api.NewClient(o.Socket), prefix: o.Owner, group: o.Group, log: log},
		moved:    make(chan struct{}, 1), passwords: map[string]password{}, tunnels: tunnels{}, ports: nodePorts{}, sets: sets{group: o.Group}, forwarding: map[string]time.Time{}}
	if n.ways = newLooker(n.wake); o.File != "" {
		n.role.leaves = leftBy(o.File) // its director may have node ports of an earlier process
	}
	var one, its follow.What
	if o.Group != "" {
		one, its = follow.What{Fields: "metadata.name=" + o.Group}, follow.What{Labels: v1alpha1.LabelGroup + "=" + o.Group}
	}
	n.group = follow.Informer(resources, v1alpha1.DirectorGroups, &v1alpha1.DirectorGroup{}, one)
	n.set = follow.Informer(resources, v1alpha1.DirectorSets, &v1alpha1.DirectorSet{}, its)
	if o.Socket != "" {
		n.peer = follow.Informer(resources, v1alpha1.BGPPeers, &v1alpha1.BGPPeer{}, follow.What{})
	}
	if o.Pod == nil {
		n.node = follow.Informer(local.RESTClient(), "nodes", &corev1.Node{}, follow.What{Fields: "metadata.name=" + o.Node})
	}
	for _, i := range n.followed(n.group, n.set, n.peer) {
		_, err := i.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: func(any) { n.wake() }, UpdateFunc: func(_, _ any) { n.wake() }, DeleteFunc: func(any) { n.wake() }})
		if err != nil {
			return nil, err
		}
	}
	return n, nil
}

func (n *Node) wake() {
	select {
	case n.moved <- struct{}{}:
	default:
	}
}

// Write writes the director's file, as far as it is known, and returns: a director that starts
// needs one. An existing one stays: it is what ran before. The same holds for an agent's file.
func (n *Node) Write(ctx context.Context) error {
	if n.AgentFile != "" {
		if err := n.writeOnce(); err != nil || n.Socket == "" {
			return err
		}
	}
	if err := follow.Run(ctx, n.followed(n.group, n.peer)...); err != nil {
		return err
	}
	for {
		if g := follow.One[v1alpha1.DirectorGroup](n.group, n.Group); g != nil {
			f := n.facts(g)
			err := n.writeFile(ctx, g, &f, announced{}, time.Now())
			if _, none := os.Stat(n.File); none == nil && err != nil {
				// A peer whose password cannot be read yet is left out: it must not keep a director
				// from starting.
				n.log.Warn("the director's file is without what could not be read", "error", err)
				return nil
			}
			return err
		}
		n.log.Info("waiting for the DirectorGroup", "group", n.Group)
		select {
		case <-n.moved:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// followed returns these informers and that of the Node, without those that do not exist.
func (n *Node) followed(all ...cache.SharedIndexInformer) []cache.SharedIndexInformer {
	return slices.DeleteFunc(append(all, n.node), func(i cache.SharedIndexInformer) bool { return i == nil })
}

// Run does the work until the context ends. Then the director goes on unchanged; that of a pod has
// been told to end, too.
func (n *Node) Run(ctx context.Context) error {
	if n.Socket != "" {
		go n.listen(ctx)
	}
	if err := follow.Run(ctx, n.followed(n.group, n.set, n.peer)...); err != nil {
		return err
	}
	if n.Pod != nil && n.Pod.BPFFS != "" {
		if err := n.sweep(ctx); err != nil {
			n.log.Warn("something of other pods stays", "error", err)
		}
	}
	go n.ways.run(ctx)
	n.log.Info("following the group", "group", n.Group, "node", n.Node)
	go n.leaseWriter.run(ctx)
	ticks := time.NewTicker(again)
	defer ticks.Stop()
	for {
		n.pass(ctx, time.Now())
		select {
		case <-n.moved:
			time.Sleep(together)
		case <-ticks.C:
		case <-ctx.Done():
			<-n.leaseWriter.ended
			if n.Pod != nil {
				return errors.Join(ctx.Err(), n.leaving())
			}
			return ctx.Err()
		}
	}
}

// listen notes whether the director answers, and when it is another process.
func (n *Node) listen(ctx context.Context) {
	for ctx.Err() == nil {
		if role, err := n.director.client.Role(ctx); err == nil && role == api.RoleDirector {
			n.restarted.Store(true)
			n.answers.Store(true)
			n.wake()
			_ = n.director.client.Events(ctx, api.EventQuery{Follow: true}, func(api.Event) error { return nil }) // it ends with the director
			n.answers.Store(false)
			n.wake()
		}
		select {
		case <-time.After(reconnect):
		case <-ctx.Done():
		}
	}
}

func (n *Node) facts(g *v1alpha1.DirectorGroup) facts {
	if n.Pod != nil {
		return n.Pod.facts()
	}
	f := factsOf(n.Node, follow.One[corev1.Node](n.node, n.Node), g)
	if g == nil || len(g.Spec.ReplyInterfaces) == 0 {
		n.overlay = overlay{}
		return f
	}
	if err := n.overlay.read(g.Spec.ReplyInterfaces); err != nil && f.Unfit == "" {
		f.Unfit = err.Error()
	}
	f.Overlay = n.overlay
	return f
}

// pass does all the work once.
func (n *Node) pass(ctx context.Context, now time.Time) {
	if n.restarted.Swap(false) {
		n.director.forget()
		n.role.emptied = false
	}
	g := follow.One[v1alpha1.DirectorGroup](n.group, n.Group)
	f := n.facts(g)
	var err error
	if n.Socket != "" {
		err = n.follow(ctx, g, &f, now)
		if n.answers.Load() || n.answered.IsZero() {
			n.answered = now
		}
		if f.Unfit == "" && !n.answers.Load() {
			f.Unfit = n.role.unfit(now.Sub(n.answered))
		}
		n.hear(ctx, g, &f, now)
		n.examine(ctx, now)
		if g != nil { // else there is no group to tell
			n.leaseWriter.report(n.owner(g), said{n.presence(g, &f), n.report.report, n.report.counts, n.report.others})
		}
		err = errors.Join(err, n.leaseWriter.err())
	}
	if n.AgentFile != "" {
		err = errors.Join(err, n.writeAgent(follow.List[v1alpha1.DirectorGroup](n.group), &f, now), n.reportAgent(ctx, now))
	}
	if err == nil {
		n.said = ""
	} else if text := err.Error(); text != n.said && ctx.Err() == nil {
		n.said = text
		n.log.Warn("not everything could be made so; trying again", "error", err)
	}
}

// follow makes the director match the node's current role in the group.
func (n *Node) follow(ctx context.Context, g *v1alpha1.DirectorGroup, f *facts, now time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, asking)
	defer cancel()
	if g == nil && n.role.group == nil {
		return n.empty(ctx) // it was removed while this process did not run
	}
	drain := n.role.is(g, n.Node, now)
	if drain {
		n.log.Info("the node is no director of the group any more: it withdraws its routes, and forwards for a while", "drain", n.role.drain)
	}
	switch n.role.state {
	case active:
		return n.forward(ctx, f, now)
	case draining:
		err := n.writeFile(ctx, n.role.group, f, announced{}, now)
		if n.role.group.Spec.NodePorts == nil { // agents will soon forget them
			err = errors.Join(err, n.putNodePorts(ctx, f, nil))
		}
		return err
	}
	if n.taken, n.lacksPorts = (taken{}), ""; n.role.group.Spec.NodePorts != nil {
		n.lacksPorts = notYet
	}
	of := n.role.group
	if g == nil { // it was removed, and nothing of it is forwarded any more
		of = withoutOVN(of)
	}
	return errors.Join(n.writeFile(ctx, of, f, announced{}, now), n.empty(ctx))
}

// forward gives the director what the group forwards. It learns the sources that it leaves to
// kube-proxy at node ports before it has any, and forgets them only when it has none.
func (n *Node) forward(ctx context.Context, f *facts, now time.Time) error {
	err := n.sets.read(follow.List[v1alpha1.DirectorSet](n.set))
	var not map[int]error
	if n.answers.Load() {
		refused, without := n.director.put(ctx, n.sets.bySet(), now)
		not = n.sets.lacks(refused)
		n.taken.is(&n.sets, not, without, now)
		err = errors.Join(err, errorOf(not), errorWithout(without))
	}
	write := func() error {
		return n.writeFile(ctx, n.role.group, f, announced{active: true, vips: n.mine()}, now)
	}
	if !takesNodePorts(n.role.group) {
		ports := n.putNodePorts(ctx, f, not)
		return errors.Join(err, ports, write())
	}
	err = errors.Join(err, write())
	return errors.Join(err, n.putNodePorts(ctx, f, not))
}

// mine returns the VIPs that this node answers for by ARP and NDP.
func (n *Node) mine() (list []group.VIP) {
	if n.role.group.Spec.Neighbor == nil {
		return nil
	}
	var directors []string
	for _, d := range n.role.group.Status.Directors {
		directors = append(directors, d.Node)
	}
	for _, vip := range n.sets.vips() {
		if group.Answers(n.Node, directors, vip) {
			list = append(list, vip)
		}
	}
	return list
}

// empty takes out what the director has of the group, when it answers.
func (n *Node) empty(ctx context.Context) error {
	if !n.answers.Load() || n.role.emptied {
		return nil
	}
	err := n.director.empty(ctx)
	n.role.emptied = err == nil
	return err
}

// writeFile writes the director's file.
func (n *Node) writeFile(ctx context.Context, g *v1alpha1.DirectorGroup, f *facts, told announced, now time.Time) error {
	peers := n.peers(g, f)
	passwords, passwordErr := n.readPasswords(ctx, peers, now)
	told.passwords = passwords
	told.ovn = n.readCertificate(ctx, g, now)
	text, err := file(g, peers, f, told, n.leaves(g), n.State)
	if err == nil {
		err = replace(n.File, text)
	}
	return errors.Join(passwordErr, told.ovn.err, err)
}

func (n *Node) peers(g *v1alpha1.DirectorGroup, f *facts) []*translate.BGPPeer {
	return peersOf(follow.List[v1alpha1.BGPPeer](n.peer), g, f)
}

// peersOf returns the peers that a node of a group has sessions with, in the order of their names.
// The controller says in a peer's status why it cannot be read.
func peersOf(list []*v1alpha1.BGPPeer, g *v1alpha1.DirectorGroup, f *facts) (peers []*translate.BGPPeer) {
	for _, p := range list {
		if read, err := translate.ReadBGPPeer(p); err == nil && read.Serves(g) && read.Selects(f.Labels) {
			peers = append(peers, read)
		}
	}
	slices.SortFunc(peers, func(a, b *translate.BGPPeer) int { return strings.Compare(a.Of.Name, b.Of.Name) })
	return peers
}

// password is a peer's password that was read.
type password struct {
	file string
	read time.Time
	err  error // why the last read failed; the earlier password stays in use
}

// readPasswords returns the files of peers' passwords.
func (n *Node) readPasswords(ctx context.Context, peers []*translate.BGPPeer, now time.Time) (map[string]string, error) {
	files := map[string]string{}
	var errs []error
	for _, p := range peers {
		secret := p.Of.Spec.PasswordSecret
		if secret == "" {
			continue
		}
		known := n.passwords[secret]
		if now.Sub(known.read) >= secretPace {
			known.read = now
			path := filepath.Join(filepath.Dir(n.File), "bgp-"+secret+".password")
			s, err := n.core.Secrets(n.Namespace).Get(ctx, secret, metav1.GetOptions{})
			switch {
			case err != nil:
				err = fmt.Errorf("read the password of BGPPeer %s: %w", p.Of.Name, err)
			case len(s.Data["password"]) == 0:
				err = fmt.Errorf("read the password of BGPPeer %s: Secret %s has no key password", p.Of.Name, secret)
			default:
				if err = replace(path, append(slices.Clone(s.Data["password"]), '\n')); err == nil {
					known.file = path
				}
			}
			known.err = err
			n.passwords[secret] = known
		}
		if known.err != nil {
			errs = append(errs, known.err)
		}
		if known.file != "" {
			files[p.Of.Name] = known.file
		}
	}
	return files, errors.Join(errs...)
}
