// Package doctor examines a host: whether a director or an agent can run on it, and what on it
// would keep packets from arriving. It changes nothing.
package doctor

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"

	"weir.io/weir/internal/device"
	"weir.io/weir/internal/model"
	"weir.io/weir/internal/tune"
)

// Level is how bad a finding is.
type Level string

// The levels of findings.
const (
	OK   Level = "ok"
	Warn Level = "warn" // works, but not well or not always
	Fail Level = "fail" // does not work
)

// Finding is what one check found.
type Finding struct {
	Level Level  `json:"level"`
	Check string `json:"check"` // what was looked at: "kernel", "mtu eth0"
	Text  string `json:"text"`  // what is
	Fix   string `json:"fix,omitempty"`
}

// Problem is the problem that a failure is for a process that runs.
func (f *Finding) Problem() model.Problem {
	return model.Problem{Part: f.Check, Text: f.Check + ": " + f.Text, Fix: f.Fix}
}

// Role is what weir does on the host.
type Role string

// The roles.
const (
	Auto     Role = "auto" // by the configuration and the host's addresses
	Director Role = "director"
	Agent    Role = "agent"
)

// Options say what to examine the host for.
type Options struct {
	Config *model.Config    // nil: look only at what every configuration needs
	Role   Role             // empty: Auto
	BPFFS  string           // where the BPF file system is mounted
	State  func() []Finding // looks at where a director keeps its state
	// Cores is where the settings are that decide how CPUs share packets; nil: this host.
	Cores *tune.Host
	// Probes are the connections of the last health checks of a director that runs, each from where
	// and to where; nil: they are not known.
	Probes func() map[[2]netip.AddrPort]bool
	// Listed are addresses that servers of SCTP have told a director that runs; nil: none are known.
	Listed func() []model.ListedAddresses
	// Places are where hosts of tenants' networks are, as a director says that runs here; nil: none does.
	Places func() *model.SegmentsStatus
	// Reports looks at where an agent reports the connections of these backends to.
	Reports func(backends []model.HostAddress) []Finding
}

// Examine returns what was found, in the order of the checks. It looks at the
// network namespace of the calling thread.
func Examine(o Options) []Finding {
	x := newExamination(context.Background(), &o)
	x.kernel()
	x.capabilities()
	x.bpf()
	x.bpffs(o.BPFFS)
	if o.Config == nil || !x.prepare() {
		return x.findings
	}
	director, agent := x.roles(o.Role)
	if director {
		x.readPlaces(o.Places)
		x.director()
		if o.State != nil {
			x.findings = append(x.findings, o.State()...)
		}
	}
	if agent {
		x.agent()
		if o.Reports != nil {
			x.findings = append(x.findings, o.Reports(x.reportedBackends())...)
		}
	}
	return x.findings
}

// Worst returns the worst level among findings.
func Worst(findings []Finding) Level {
	worst := OK
	for _, f := range findings {
		if f.Level == Fail || f.Level == Warn && worst == OK {
			worst = f.Level
		}
	}
	return worst
}

// examination is one look at a host.
type examination struct {
	ctx       context.Context
	running   bool // of a process that runs: see Running
	config    *model.Config
	host      *tune.Host
	probes    func() map[[2]netip.AddrPort]bool
	listed    func() []model.ListedAddresses
	pinned    map[string]bool // interfaces that a director has been attached to
	findings  []Finding
	links     map[int]netlink.Link
	addresses map[netip.Addr]int // this host's, by interface
	sending   *device.Egress     // the interfaces by which the director's packets leave by XDP
	reached   map[string]bool    // interfaces by which full NAT's backends are reached and their replies taken
	asking    map[string]bool    // interfaces on which full NAT's backends are, without a router: they ask there for its addresses
	routes    map[netip.Addr]route
	places    places
}

func newExamination(ctx context.Context, o *Options) *examination {
	probes := o.Probes
	if probes == nil {
		probes = func() map[[2]netip.AddrPort]bool { return nil }
	}
	return &examination{ctx: ctx, config: o.Config, host: o.Cores, probes: probes, listed: o.Listed, pinned: pinned(o.BPFFS), reached: map[string]bool{}, asking: map[string]bool{}, routes: map[netip.Addr]route{}}
}

// prepare reads what the checks of a configuration need.
func (x *examination) prepare() bool {
	if !x.readHost() {
		return false
	}
	x.name()
	x.sending = device.NewEgress(x.config.Director.XDP == model.XDPGeneric)
	return true
}

func (x *examination) ok(check, format string, args ...any) {
	x.findings = append(x.findings, Finding{OK, check, fmt.Sprintf(format, args...), ""})
}

func (x *examination) warn(check, fix, format string, args ...any) {
	x.findings = append(x.findings, Finding{Warn, check, fmt.Sprintf(format, args...), fix})
}

func (x *examination) fail(check, fix, format string, args ...any) {
	x.findings = append(x.findings, Finding{Fail, check, fmt.Sprintf(format, args...), fix})
}

// known is fail for what a running process finds itself.
func (x *examination) known(check, fix, format string, args ...any) {
	if !x.running {
		x.fail(check, fix, format, args...)
	}
}

// readHost reads interfaces and addresses, on which the other checks depend.
func (x *examination) readHost() bool {
	links, err := netlink.LinkList()
	if err != nil {
		x.fail("network", "", "the interfaces cannot be listed: %v", err)
		return false
	}
	x.links = make(map[int]netlink.Link, len(links))
	for _, l := range links {
		x.links[l.Attrs().Index] = l
	}
	addresses, err := netlink.AddrList(nil, netlink.FAMILY_ALL)
	if err != nil {
		x.fail("network", "", "the addresses cannot be listed: %v", err)
		return false
	}
	x.addresses = make(map[netip.Addr]int, len(addresses))
	for _, a := range addresses {
		if address, ok := netip.AddrFromSlice(a.IP); ok {
			x.addresses[address.Unmap()] = a.LinkIndex
		}
	}
	return true
}

// roles says which checks apply. Directors and backends may share one file, so a
// host that has a backend's address is a backend's host, and a director's only if
// one runs on it, or has run and was not detached.
func (x *examination) roles(role Role) (director, agent bool) {
	switch role {
	case Director:
		return true, false
	case Agent:
		return false, true
	}
	agent = len(x.localServices()) > 0
	director = len(x.config.Director.Interfaces) > 0
	if agent && director {
		director = len(x.pinned) > 0 || slices.ContainsFunc(x.config.Director.Interfaces, func(name string) bool {
			link := x.link(name)
			return link != nil && programOf(link) == directorProgram
		})
	}
	return director, agent || !director && len(x.config.Agent.Interfaces) > 0
}

// name replaces interfaces' names in the configuration by their current ones: it may have
// alternative names, and all checks compare the kernel's names.
func (x *examination) name() {
	links := slices.Collect(maps.Values(x.links))
	c := *x.config
	c.Director.Interfaces = device.CurrentNames(links, c.Director.Interfaces)
	c.Director.ReplyInterfaces = device.CurrentNames(links, c.Director.ReplyInterfaces)
	c.Agent.Interfaces = device.CurrentNames(links, c.Agent.Interfaces)
	c.Agent.ReplyInterfaces = device.CurrentNames(links, c.Agent.ReplyInterfaces)
	x.config = &c
	for name := range x.pinned {
		if link := device.Named(links, name); link != nil {
			x.pinned[link.Attrs().Name] = true
		}
	}
}

func (x *examination) link(name string) netlink.Link {
	return device.Named(slices.Collect(maps.Values(x.links)), name)
}

// reportedBackends are those of this host whose connections an agent reports.
func (x *examination) reportedBackends() []model.HostAddress {
	var backends []model.HostAddress
	for _, s := range x.localServices() {
		b := &s.Backends[0]
		if at := b.AddressIn(&s); b.ModeIn(s) == model.GUE && !b.Host.IsValid() && !slices.Contains(backends, at) {
			backends = append(backends, at)
		}
	}
	return backends
}

// localServices returns the services of which this host, or a pod of it, is a backend, each
// with that backend only.
func (x *examination) localServices() []model.Service {
	var local []model.Service
	for _, s := range x.config.Services {
		for _, b := range s.Backends {
			if _, here := x.addresses[hostOf(&b)]; here {
				s.Backends = []model.Backend{b}
				local = append(local, s)
				break
			}
		}
	}
	return local
}

// Running examines the host of a director or an agent that runs, which calls it from time to time:
// it returns the failures that the process does not find by itself, and none that concern only a
// start. Role is Director or Agent, and there is a Config; State and Reports are not called. An
// error says that the host could not be examined, or not before the context ended: then nothing is
// known about it.
//
// Warnings are not returned: they often hold on a host where all goes well, and the exit status of
// weir doctor leaves them out, too.
func Running(ctx context.Context, o Options) ([]Finding, error) {
	x := newExamination(ctx, &o)
	x.running = true
	if !x.prepare() {
		return nil, errors.New(x.findings[0].Text)
	}
	if o.Role == Agent {
		x.agent()
	} else {
		x.readPlaces(o.Places)
		x.director()
	}
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("examine this host: %w", err)
	}
	return slices.DeleteFunc(x.findings, func(f Finding) bool { return f.Level != Fail }), nil
}
