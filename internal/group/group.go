// Package group is a group of directors in the etcd that they share: their sets, and what directors
// and agents tell each other.
package group

import (
	"weir.io/weir/internal/etcdclient"
	"weir.io/weir/internal/store"
)

// Group is a process's part in its group. Beside the state ([store.Etcd]) there are these keys in etcd:
//
//	PREFIX/evidence/ADDRESS        what an agent says about a backend's connections
//	PREFIX/evidence/SEGMENT/ADDRESS the same of a backend in a tenant's network; versions up to 0.1 pass over it
//	PREFIX/directors/ADDRESS       by what certificate a director is known to the others
//	PREFIX/directors/ADDRESS/lives that it lives
//	PREFIX/directors/ADDRESS/runs  what it says about itself
//	PREFIX/views/LEASE/SERVICE     what a director's probes have found
//	PREFIX/neighbor/...            which director answers for which VIP, where there is no router
//
// They are no part of the state and not in its revisions: losing them loses no configuration.
type Group struct {
	*store.Etcd
	client *etcdclient.Client
	stays  *etcdclient.Lease // by which this process's reports, or its fingerprint, live
}

// The parts of the shared data whose problems are told.
const (
	partFlows    = "flows"    // how the directors that tell of flows know each other
	partViews    = "views"    // what probes find
	partReports  = "reports"  // of connections, by agents
	partNamesake = "namesake" // another director with this one's address
	partClocks   = "clocks"   // of the group's directors
	partSettings = "settings" // of the group's directors
)

// Open returns the group in an etcd, which need not be reachable yet. cache is the directory of the last
// known state; empty: none is kept.
func Open(o etcdclient.Options, cache string) (*Group, error) {
	client, err := etcdclient.New(o)
	if err != nil {
		return nil, err
	}
	return &Group{store.NewEtcd(client, cache), client, client.NewLease(reportsLive, "reports")}, nil
}

// Close ends the connection.
func (g *Group) Close() error { return g.client.Close() }
