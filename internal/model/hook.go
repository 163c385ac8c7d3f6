package model

import (
	"cmp"
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"
)

// Hook is a program, or a server, that is told what changes at this director: which VIPs it forwards,
// to set routes where no router speaks BGP, in a cloud; or which backends are up.
type Hook struct {
	Name string `json:"name"`
	// About is what the hook is told of; none: of VIPs.
	About     []HookSubject `json:"about,omitempty" minItems:"1"`
	Exec      []string      `json:"exec,omitempty"`       // a program and its arguments
	URL       string        `json:"url,omitempty"`        // instead: a server that is sent a POST
	TokenFile string        `json:"token-file,omitempty"` // the secret for the server: Authorization: Bearer
	Timeout   Duration      `json:"timeout,omitzero"`     // of one call
	// Capabilities are what the program gets of those that weir run has, as capabilities(7) writes
	// them; none: it gets none.
	Capabilities []string `json:"capabilities,omitempty"`
}

// HookSubject is what a hook is told of.
type HookSubject string

// What hooks are told of.
const (
	HookVIPs     HookSubject = "vips"
	HookBackends HookSubject = "backends" // and of their services
)

var hookSubjectNames = names[HookSubject]{kind: "subject", list: []name[HookSubject]{{HookVIPs, "vips"}, {HookBackends, "backends"}}}

// Names returns the subjects' names.
func (HookSubject) Names() []string { return hookSubjectNames.texts() }

// UnmarshalText reads a subject.
func (s *HookSubject) UnmarshalText(text []byte) error { return hookSubjectNames.read(s, text) }

// IsAbout says whether the hook is told of a subject.
func (h *Hook) IsAbout(subject HookSubject) bool {
	return slices.Contains(h.About, subject) || len(h.About) == 0 && subject == HookVIPs
}

// The default and the bounds of a hook's time-out, and the largest number of hooks.
const (
	DefaultHookTimeout = Duration(10 * time.Second)
	minHookTimeout     = Duration(100 * time.Millisecond)
	maxHookTimeout     = Duration(10 * time.Minute)
	maxHooks           = 16
)

// HookEvent is why a hook is called.
type HookEvent string

// Why hooks are called.
const (
	HookStart  HookEvent = "start"  // the director or the hook is new: what the hook knows is unknown
	HookChange HookEvent = "change" // VIPs came up, or went
	HookDrain  HookEvent = "drain"  // the director withdraws all of them, and will end
)

// HookCall is what a hook is told. Only Up counts: a call may come twice, and changes that follow
// each other quickly come as one.
type HookCall struct {
	Hook    string       `json:"hook"`
	Event   HookEvent    `json:"event"`
	Attempt int          `json:"attempt"` // 1, and more after calls that failed
	Up      []netip.Addr `json:"up"`      // the VIPs that this director forwards
	Came    []netip.Addr `json:"came"`    // VIPs among these that the hook has not taken yet
	Went    []netip.Addr `json:"went"`    // VIPs that the hook was told of and that are no longer up
	// Segments are the same of VIPs in segments, which are not in the lists above. A segment that is
	// not in it has no VIP that is up.
	Segments []HookSegment `json:"segments,omitempty"`
	// Services are those that have changed, or a backend of them, since the hook took the last call.
	// Hooks about VIPs alone have none.
	Services []HookService `json:"services,omitempty"`
}

// HookService is what a hook is told of a service that has changed.
type HookService struct {
	Service string `json:"service"`
	ServiceID
	State    HookState     `json:"state"`
	Was      HookState     `json:"was,omitempty"` // that the hook took last; empty: none
	Healthy  int           `json:"healthy"`       // backends that are up
	Total    int           `json:"total"`         // backends
	Backends []HookBackend `json:"backends"`      // those that have changed
}

// HookBackend is what a hook is told of a backend that has changed.
type HookBackend struct {
	Backend string     `json:"backend"`
	Address netip.Addr `json:"address"`
	Port    uint16     `json:"port,omitempty"` // 0: the packet's own
	State   HookState  `json:"state"`
	Was     HookState  `json:"was,omitempty"` // that the hook took last; empty: none
}

// HookState is what a backend or a service is for hooks.
type HookState string

// What backends and services are. A service is up, down or gone.
const (
	HookUp       HookState = "up"
	HookDown     HookState = "down"     // by checks, or by the configuration
	HookUnknown  HookState = "unknown"  // its checks have no result yet
	HookDraining HookState = "draining" // it gets no new connections
	HookDrained  HookState = "drained"  // no generation that may have connections has it any more
	HookGone     HookState = "gone"     // the configuration does not have it any more
)

// ToldService is a service as hooks are told of it.
type ToldService struct {
	Name     string
	ID       ServiceID
	State    HookState
	Healthy  int
	Backends []ToldBackend // in the order of the configuration
}

// ToldBackend is a backend as hooks are told of it.
type ToldBackend struct {
	Name     string
	Endpoint netip.AddrPort
	State    HookState
}

// HookSegment is what a hook is told of a segment's VIPs.
type HookSegment struct {
	Segment Segment      `json:"segment"`
	Up      []netip.Addr `json:"up"`
	Came    []netip.Addr `json:"came"`
	Went    []netip.Addr `json:"went"`
}

// HookStatus is what became of a hook's calls.
type HookStatus struct {
	Name     string    `json:"name"`
	Current  bool      `json:"current"`            // the hook has taken the current state
	Running  bool      `json:"running"`            // a call is under way
	Up       int       `json:"up"`                 // VIPs that it is to be told
	Calls    uint64    `json:"calls"`              // that have ended, since the director started
	Failures uint64    `json:"failures"`           // those of them that failed
	Took     time.Time `json:"took,omitzero"`      // when it took the last state that it was told
	Problem  string    `json:"problem,omitempty"`  // of the last call, if that failed
	NextTry  time.Time `json:"next-try,omitzero"`  // after a failure
	Duration Duration  `json:"duration,omitempty"` // of the last call
}

// Announcement is what is announced of the VIPs that a director forwards, and to which neighbors
// and hooks.
type Announcement struct {
	BGP    BGP
	Routes []Route // for BGP neighbors
	EVPN   EVPN    // for those of them that are told of overlays
	Hooks  []Hook
	// Neighbor is where this director, as one of the group, answers for VIPs itself.
	Neighbor Neighbor
	Group    []netip.Addr
	VIPs     []VIP // for hooks and for hosts on the link: those that are up, in order
	// Services are for hooks about backends; without such a hook there are none.
	Services []ToldService
	SNAT     SNAT         // whose addresses are announced, too, if it says so
	Others   []netip.Addr // then: full NAT's addresses of other directors whose flows this one goes on with
}

func (c *Config) setHookDefaults() {
	for i := range c.Hooks {
		c.Hooks[i].Timeout = cmp.Or(c.Hooks[i].Timeout, DefaultHookTimeout)
	}
}

func (v *validation) hooks() {
	if len(v.config.Hooks) > maxHooks {
		v.errs.add("hooks", "has %d hooks, more than %d", len(v.config.Hooks), maxHooks)
	}
	names := map[string]string{}
	for i := range v.config.Hooks {
		h := &v.config.Hooks[i]
		at := fmt.Sprintf("hooks[%d]", i)
		if problem := nameProblem(h.Name); problem != "" {
			v.errs.add(at+".name", "%s", problem)
		} else if first, dup := names[h.Name]; dup {
			v.errs.addWithOther(at+".name", first, "%q is the name of another hook", h.Name)
		} else {
			names[h.Name] = at + ".name"
		}
		v.hookAbout(at, h)
		v.hookTarget(at, h)
		v.duration(at+".timeout", h.Timeout, minHookTimeout, maxHookTimeout)
	}
}

// hookAbout checks what the hook is told of, and what its program may do.
func (v *validation) hookAbout(at string, h *Hook) {
	seen := map[HookSubject]bool{}
	for i, subject := range h.About {
		if seen[subject] {
			v.errs.add(fmt.Sprintf("%s.about[%d]", at, i), "%q is there twice", subject)
		}
		seen[subject] = true
	}
	if len(h.Capabilities) > 0 && h.URL != "" {
		v.errs.addWithOther(at+".capabilities", at+".url", "are for a program (exec) only")
	}
	given := map[string]bool{}
	for i, name := range h.Capabilities {
		switch path := fmt.Sprintf("%s.capabilities[%d]", at, i); {
		case !slices.Contains(HookCapabilities, name):
			v.errs.add(path, "%q is not a capability that weir run can give: %s", name, strings.Join(HookCapabilities, ", "))
		case given[name]:
			v.errs.add(path, "%q is there twice", name)
		}
		given[name] = true
	}
}

// HookCapabilities are the capabilities that a hook's program can get: what hooks may have to change on
// the host, and nothing by which a program would be as good as root.
var HookCapabilities = []string{"CAP_NET_ADMIN", "CAP_NET_RAW", "CAP_NET_BIND_SERVICE"}

// hookTarget checks what a hook calls: one program, or one server.
func (v *validation) hookTarget(at string, h *Hook) {
	switch {
	case len(h.Exec) == 0 && h.URL == "":
		v.errs.add(at, "needs exec, a program, or url, a server")
	case len(h.Exec) > 0 && h.URL != "":
		v.errs.addWithOther(at+".url", at+".exec", "is a second one to call: a hook has exec or url")
	case len(h.Exec) > 0:
		if h.Exec[0] == "" {
			v.errs.add(at+".exec[0]", "is empty; it is the program")
		}
		v.fromRoot(at+".exec[0]", h.Exec[0])
		if h.TokenFile != "" {
			v.errs.addWithOther(at+".token-file", at+".exec", "is for a url only")
		}
	default:
		if problem := hookURLProblem(h.URL); problem != "" {
			v.errs.add(at+".url", "%s", problem)
		}
		v.fromRoot(at+".token-file", h.TokenFile)
	}
}

func hookURLProblem(text string) string {
	u, err := url.Parse(text)
	switch {
	case err == nil && u.User != nil: // the message must not repeat it
		return "has a password in it, which everybody would see who sees the configuration: use token-file"
	case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "":
		return fmt.Sprintf("%q is not http://HOST/PATH or https://HOST/PATH", text)
	case u.Fragment != "":
		return fmt.Sprintf("%q has a fragment (#), which no server is told", text)
	}
	return ""
}
