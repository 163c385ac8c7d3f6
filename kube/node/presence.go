package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"weir.io/weir/internal/model"
	"weir.io/weir/kube/group"
	"weir.io/weir/kube/translate"
	"weir.io/weir/kube/v1alpha1"
)

// presence is what the controller is told about the node.
func (n *Node) presence(g *v1alpha1.DirectorGroup, f *facts) group.Presence {
	taken := n.taken.Taken
	p := group.Presence{Node: n.Node, Unfit: f.Unfit, Taken: &taken, Peers: n.sessions.of, NodePorts: n.lacksPorts, OVN: n.ofOVN(g)}
	for _, a := range f.addresses() {
		p.Addresses = append(p.Addresses, a.String())
	}
	if n.Pod == nil {
		p.Ways = n.ways.look(g)
	}
	return p
}

// taken is what the node says that its director has taken. It says so at once if Services get new
// addresses or ports, or one of them is no longer taken, because the controller waits for that
// before it publishes it; all else it says only when the Lease is renewed anyway, so that pods that
// come and go cost no requests.
type taken struct {
	group.Taken
	fronts uint64
	said   time.Time
}

// is takes in what the director was last given, and which of these sets it does not have.
// Services that the director refuses are in without.
func (t *taken) is(s *sets, not map[int]error, without map[string]string, now time.Time) {
	next := taken{group.Taken{Version: s.version, Without: group.Some(without)}, s.fronts(), now}
	for n, err := range not {
		if next.Not == nil {
			next.Not = map[int32]string{}
		}
		next.Not[int32(n)] = oneLine(err)
	}
	if t.said.IsZero() || t.fronts != next.fronts || !maps.Equal(t.Not, next.Not) || !maps.Equal(t.Without, next.Without) || now.Sub(t.said) >= group.Renew {
		*t = next
	}
}

// longestWhy is how much is said about why a set is not taken, or about a session.
const longestWhy = 200

// oneLine returns what an annotation says of an error.
func oneLine(err error) string { return shortened(strings.ReplaceAll(err.Error(), "\n", "; ")) }

func shortened(text string) string {
	if len(text) <= longestWhy {
		return text
	}
	return strings.ToValidUTF8(text[:longestWhy], "") + " ..."
}

// errorOf makes one error of why sets are not taken.
func errorOf(not map[int]error) error {
	var list []error
	for _, n := range slices.Sorted(maps.Keys(not)) {
		list = append(list, fmt.Errorf("put set %d to the director: %w", n, not[n]))
	}
	return errors.Join(list...)
}

// errorWithout makes one error of why Services are not taken.
func errorWithout(without map[string]string) error {
	var list []error
	for _, name := range slices.Sorted(maps.Keys(without)) {
		list = append(list, fmt.Errorf("the director does not take %s: %s", name, without[name]))
	}
	return errors.Join(list...)
}

// sessions are, for each BGPPeer that the node should have a session with, by name, why there is
// none; empty: there is one.
type sessions struct {
	of   map[string]string
	read time.Time
}

// hear asks the director for the state of its sessions. The Lease tells it, so it is asked no more
// often than the Lease is renewed.
func (n *Node) hear(ctx context.Context, g *v1alpha1.DirectorGroup, f *facts, now time.Time) {
	if now.Sub(n.sessions.read) < group.Renew || !n.answers.Load() {
		return
	}
	n.sessions = sessions{read: now}
	if g == nil || g.Spec.BGP == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, group.Renew)
	defer cancel()
	status, err := n.director.client.BGP(ctx)
	if err != nil {
		return // its Lease says that it does not answer, when it goes on
	}
	n.sessions.of = sessionsOf(n.peers(g, f), n.passwords, status)
}

// sessionsOf returns why the director has no session with each of the peers.
func sessionsOf(peers []*translate.BGPPeer, passwords map[string]password, status model.BGPStatus) map[string]string {
	at := map[string]model.BGPNeighborStatus{}
	for _, s := range status.Neighbors {
		at[s.Name()] = s
	}
	of := map[string]string{}
	for _, p := range peers {
		s, told := at[p.Neighbor.Name()]
		why := ""
		switch secret := p.Of.Spec.PasswordSecret; {
		case secret != "" && passwords[secret].err != nil:
			why = passwords[secret].err.Error()
		case !told:
			why = "weir run has not been told of it yet"
		case s.State != model.SessionEstablished:
			why = cmp.Or(s.Problem, string(s.State))
		}
		of[p.Of.Name] = shortened(why)
	}
	return of
}
