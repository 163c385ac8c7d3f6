package controller

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"weir.io/weir/internal/model"
	"weir.io/weir/kube/group"
	"weir.io/weir/kube/translate"
)

const (
	// straggle is how long the controller waits for the other directors when enough have a Service.
	straggle = 2 * time.Second
	// patience is how long no problem is reported for a Service that not enough directors have. It
	// is longer than group.Renew, within which each director says what it has in any case.
	patience = 5 * time.Second
)

// awaited is what the controller waits for from a Service's or a Gateway's directors.
type awaited struct {
	since  string    // the version of the DirectorSet that directors are to have; empty: none
	from   time.Time // when that version was first seen
	enough time.Time // when enough directors had it
	done   bool
}

// await finds out, by what directors say, which Services and Gateways the directors of their groups
// have taken, and returns when to look again if they say nothing. The others are not forwarded yet:
// w.waits says why.
func (p *plan) await(groups map[string]*compiledGroup, now time.Time) (next time.Time) {
	p.waiting = map[*wish]bool{}
	for w := range p.unsettled {
		w.waits = ""
		g := w.group
		if g == nil || !w.forwarded || len(w.made.services) == 0 || groups[g.Of.Name] == nil {
			continue // the file's directors have answered, or there is nothing to wait for
		}
		c := groups[g.Of.Name].byName[w.name().String()]
		if c == nil {
			continue
		}
		if w.awaited.since != c.since {
			w.awaited = awaited{since: c.since, from: now}
		}
		if !w.awaited.done {
			next = sooner(next, w.ask(c, p.read.staff[g.Of.Name].directors, now))
		}
		if w.awaited.done {
			continue
		}
		p.waiting[w] = true
		w.forwarded = false
		if !now.Before(w.awaited.from.Add(patience)) && w.gateway == nil {
			w.problem(accepting, translate.NotForward, "%s", w.waits)
		}
	}
	return next
}

// ask finds out whether enough directors have what the Service was compiled to, and when to look
// again.
func (w *wish) ask(c *compiled, directors []group.Candidate, now time.Time) (next time.Time) {
	a := &w.awaited
	if w.service != nil && firstInStatus(w.made.services) {
		a.done = true
		return next
	}
	has, lacks := map[string]bool{}, []string{}
	for _, d := range directors {
		if why := d.Taken.Lacks(c.written.Set, c.written.Name, c.since); why == "" {
			has[d.Node] = true
		} else {
			lacks = append(lacks, d.Node+" "+why)
		}
	}
	if !w.enough(has, directors) {
		a.enough = time.Time{}
		w.waits = fmt.Sprintf("%s, but is not forwarded yet, by the directors of DirectorGroup %s: %s; the log of weir-kube node there says more", w.ready(), w.group.Of.Name, strings.Join(lacks, "; "))
		if until := a.from.Add(patience); now.Before(until) {
			return until
		}
		return next
	}
	if a.enough.IsZero() {
		a.enough = now
	}
	until := a.enough.Add(straggle)
	if a.done = len(lacks) == 0 || !now.Before(until); a.done {
		return next
	}
	w.waits = fmt.Sprintf("%s, and waits for some of its directors: %s", w.ready(), strings.Join(lacks, "; "))
	return until
}

// ready says what a Service has before it is forwarded.
func (w *wish) ready() string { return "it has " + addressText(w) }

// enough reports whether packets find their way when these directors have the Service. Where each
// director tells routers what it has, any director is enough. Where hosts on the link ask for the
// address, it has to be the director that answers.
func (w *wish) enough(has map[string]bool, directors []group.Candidate) bool {
	spec := &w.group.Of.Spec
	if spec.BGP != nil || spec.Neighbor == nil {
		return len(has) > 0
	}
	var names []string
	for _, d := range directors {
		names = append(names, d.Node)
	}
	in := model.Segment{}
	if w.balancer != nil {
		in = w.balancer.Segment
	}
	if in.IsOverlay() { // there each director answers for itself
		return len(has) > 0
	}
	for _, vip := range w.addresses {
		if !slices.ContainsFunc(names, func(n string) bool { return has[n] && group.Answers(n, names, group.VIP{Segment: in, Address: vip}) }) {
			return false
		}
	}
	return len(has) > 0
}

// firstInStatus reports whether backends take packets for a Service's addresses only when its
// status names the addresses: nodes in the direct modes, where kube-proxy reads them there. If the
// status waited for directors, these would send packets to nodes that do not take them.
func firstInStatus(services []model.Service) bool {
	return slices.ContainsFunc(services, func(s model.Service) bool {
		return s.Mode != model.NAT && slices.ContainsFunc(s.Backends, func(b model.Backend) bool { return !b.Host.IsValid() })
	})
}
