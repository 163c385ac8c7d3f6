package model

import "time"

// Problem is something that was asked for and does not run, or that has to hold and does not. It
// lasts from when it is found until it is resolved.
type Problem struct {
	Kind     ProblemKind `json:"kind" enum:"file,set,store,datapath,interface,host,restart,bgp,bfd,neighbor,hook,health,backend,api,group,loads,reports,service,segment,steering" doc:"what kind of thing does not run"`
	Part     string      `json:"part,omitempty" doc:"which of its kind: an interface, a neighbor, a file, an owner"`
	Severity Severity    `json:"severity" enum:"error,warning" doc:"error: what was asked for does not run; warning: it runs, and not in all of its parts or not for long"`
	Segment  Segment     `json:"segment,omitzero" doc:"the tenant's network that it is about, or whose service"`
	Text     string      `json:"text" doc:"what is wrong, for people"`
	Fix      string      `json:"fix,omitempty" doc:"what to do about it"`
	Place    `json:",inline"`
	Since    time.Time `json:"since"`
}

// Place is where in the input something is wrong.
type Place struct {
	File   string `json:"file,omitempty"`
	Line   int    `json:"line,omitempty" doc:"in the file, from 1"`
	Field  string `json:"field,omitempty" doc:"path of the field: services[1].backends[0].weight"`
	Owner  string `json:"owner,omitempty" doc:"of the set that the field is in"`
	Stored string `json:"stored,omitempty" doc:"where the other thing is that it does not go together with"`
}

// Severity is how bad a problem is.
type Severity string

// The severities.
const (
	SeverityError   Severity = "error"   // what was asked for does not run
	SeverityWarning Severity = "warning" // it runs, but not all of it, or not for long
)

// ProblemKind is the kind of thing that does not run.
type ProblemKind string

// The kinds of problems. ProblemKinds has a row for each.
const (
	ProblemFile      ProblemKind = "file"
	ProblemSet       ProblemKind = "set"
	ProblemStore     ProblemKind = "store"
	ProblemDatapath  ProblemKind = "datapath"
	ProblemInterface ProblemKind = "interface"
	ProblemHost      ProblemKind = "host"
	ProblemRestart   ProblemKind = "restart"
	ProblemBGP       ProblemKind = "bgp"
	ProblemBFD       ProblemKind = "bfd"
	ProblemNeighbor  ProblemKind = "neighbor"
	ProblemHook      ProblemKind = "hook"
	ProblemHealth    ProblemKind = "health"
	ProblemBackend   ProblemKind = "backend"
	ProblemAPI       ProblemKind = "api"
	ProblemGroup     ProblemKind = "group"
	ProblemLoads     ProblemKind = "loads"
	ProblemReports   ProblemKind = "reports"
	ProblemService   ProblemKind = "service"
	ProblemSegment   ProblemKind = "segment"
	ProblemSteering  ProblemKind = "steering"
)

// ProblemKinds are all of them, with what they are about. For kinds that refuse, what runs is not
// what was asked for: a change in steps stops there.
var ProblemKinds = []struct {
	Kind    ProblemKind
	Refuses bool
	About   string
}{
	{ProblemFile, true, "the configuration file cannot be read, is wrong, or does not go together with a set"},
	{ProblemSet, true, "a set does not go together with the file or with another set"},
	{ProblemStore, true, "the state cannot be read or written, or is lost"},
	{ProblemDatapath, true, "the kernel does not take what is desired"},
	{ProblemInterface, false, "an interface is missing, or the program cannot be attached to it"},
	{ProblemHost, false, "somebody else changes what weir holds on the host, or the host lacks what the configuration needs: `weir doctor` examines the same"},
	{ProblemRestart, true, "a change takes effect when the process starts again"},
	{ProblemBGP, false, "a session with a router, or what is announced there"},
	{ProblemBFD, false, "a session of BFD, or its process"},
	{ProblemNeighbor, false, "answers to ARP and NDP"},
	{ProblemHook, false, "a hook has not taken which VIPs are up"},
	{ProblemHealth, false, "checks cannot be made"},
	{ProblemBackend, false, "there is no way to a backend: no route, no neighbor that answers, or an interface that cannot send to it; or its address has moved to another host"},
	{ProblemAPI, true, "the API is not open where the configuration says"},
	{ProblemGroup, false, "the other directors of the group, or what is shared with them"},
	{ProblemLoads, true, "reports of loads"},
	{ProblemReports, false, "reports of connections"},
	{ProblemService, false, "all backends of a service are draining or of weight 0, a tier below the first gets its new connections, or a table has no room for its flows"},
	{ProblemSegment, false, "where hosts of tenants' networks are: sources contradict each other, one of them is lost, there is no way or no room for a host, or packets are dropped because nothing says where one is; or a segment has more than its limits"},
	{ProblemSteering, false, "a NIC does not steer the flows that it should: their packets take the usual way"},
}

// Refuses reports whether what runs is not what was asked for.
func (k ProblemKind) Refuses() bool {
	for _, row := range ProblemKinds {
		if row.Kind == k {
			return row.Refuses
		}
	}
	return false
}
