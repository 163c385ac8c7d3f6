package sim

import "slices"

// policy places requests.
type policy interface {
	// place returns the server of a request that arrives at a director.
	place(director int) int32
	// changed tells the policy that a server has one request more, or one less.
	changed(server int32, by int32)
}

// The names of the policies.
const (
	Random      = "random"
	Distributed = "round-robin per director"
	Central     = "round-robin central"
	LeastConn   = "least-conn"
	P2C         = "p2c"
	P2CInGUE    = "p2c in gue"
	Shortest    = "join shortest queue"
	OneQueue    = "one queue"
)

// policyRow is a policy and what it needs.
type policyRow struct {
	name    string
	follows bool // it uses the servers' numbers of requests
	make    func(*cluster) policy
}

// policies are all policies. It is a function because a table with functions that read the table
// would be a cycle.
func policies() []policyRow {
	return []policyRow{
		{Random, false, newOfRing},
		{Distributed, false, newDistributed},
		{Central, false, newCentral},
		{LeastConn, true, newLeastConn},
		{P2C, true, newChoices},
		{P2CInGUE, false, newInGUE},
		{Shortest, true, newShortest},
		{OneQueue, false, newOnly},
	}
}

// Policies returns the names of all policies.
func Policies() []string {
	var names []string
	for _, row := range policies() {
		names = append(names, row.name)
	}
	return names
}

func policyOf(name string) (policyRow, bool) {
	all := policies()
	i := slices.IndexFunc(all, func(row policyRow) bool { return row.name == name })
	if i < 0 {
		return policyRow{}, false
	}
	return all[i], true
}

// blind is a policy that does not look at servers.
type blind struct{}

func (blind) changed(int32, int32) {}

// only places everything in the one queue that all workers share: no policy that places requests on
// arrival does better.
type only struct{ blind }

func newOnly(*cluster) policy { return only{} }

func (only) place(int) int32 { return 0 }
