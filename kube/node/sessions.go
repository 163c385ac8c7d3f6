package node

import (
	"cmp"
	"context"
	"net/netip"
	"strings"
	"time"

	"weir.io/weir/internal/model"
	"weir.io/weir/kube/follow"
	"weir.io/weir/kube/group"
	"weir.io/weir/kube/translate"
	"weir.io/weir/kube/v1alpha1"
)

// sessions are, for each BGPPeer that the node should have a session with, by name, why there is
// none; empty: there is one.
type sessions struct {
	of   map[string]string
	read time.Time
}

// longestProblem is how much is said about one session.
const longestProblem = 200

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
	var peers []*translate.BGPPeer
	for _, p := range follow.List[v1alpha1.BGPPeer](n.peer) {
		if read, err := translate.ReadBGPPeer(p); err == nil && read.Serves(g) && read.Selects(f.Labels) {
			peers = append(peers, read)
		}
	}
	n.sessions.of = sessionsOf(peers, n.passwords, status)
}

// sessionsOf returns why the director has no session with each of the peers.
func sessionsOf(peers []*translate.BGPPeer, passwords map[string]password, status model.BGPStatus) map[string]string {
	at := map[netip.Addr]model.BGPNeighborStatus{}
	for _, s := range status.Neighbors {
		at[s.Address] = s
	}
	of := map[string]string{}
	for _, p := range peers {
		s, told := at[p.Neighbor.Address]
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

func shortened(text string) string {
	if len(text) <= longestProblem {
		return text
	}
	return strings.ToValidUTF8(text[:longestProblem], "") + " ..."
}
