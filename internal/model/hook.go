package model

import (
	"cmp"
	"fmt"
	"net/netip"
	"net/url"
	"time"
)

// Hook is a program, or a server, that is told which VIPs this director forwards: it sets routes
// where no router speaks BGP, in a cloud.
type Hook struct {
	Name      string   `json:"name"`
	Exec      []string `json:"exec,omitempty"`       // a program and its arguments
	URL       string   `json:"url,omitempty"`        // instead: a server that is sent a POST
	TokenFile string   `json:"token-file,omitempty"` // the secret for the server: Authorization: Bearer
	Timeout   Duration `json:"timeout,omitzero"`     // of one call
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
	VIPs     []VIP        // for hooks and for hosts on the link: those that are up, in order
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
		v.hookTarget(at, h)
		v.duration(at+".timeout", h.Timeout, minHookTimeout, maxHookTimeout)
	}
}

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
