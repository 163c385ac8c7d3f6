package director

import (
	"fmt"
	"slices"
	"time"

	"weir.io/weir/internal/api"
	"weir.io/weir/internal/config"
	"weir.io/weir/internal/model"
	"weir.io/weir/internal/sets"
)

// segmentsAPI is the API's way to where hosts of tenants' networks are.
type segmentsAPI struct{ d *Director }

// Segments returns what is known of all segments, and what is counted of each.
func (a segmentsAPI) Segments(only []model.Segment) (model.SegmentsStatus, error) {
	c := a.d.Config()
	all := c
	if only != nil {
		c.Services = slices.DeleteFunc(slices.Clone(c.Services), func(s model.Service) bool { return !slices.Contains(only, s.Segment) })
	}
	status := a.d.segments.Status(&c)
	kernel, err := a.d.kernel.Status()
	if err != nil {
		return status, fmt.Errorf("read the datapath: %w", err)
	}
	status.Count(kernel.Segments, &all)
	status.Note(a.d.kernel.SegmentProblems())
	return status, nil
}

// PutSegments replaces what clients of the API have said of hosts.
func (a segmentsAPI) PutSegments(text api.SetText) (put api.PutHosts, err error) {
	c := a.d.Config()
	list, err := sets.Read(text, func(text []byte) ([]model.SegmentHosts, error) { return config.ParseHosts("segments", text, &c) })
	if err != nil {
		return put, err
	}
	if err := a.d.segments.Put(list); err != nil {
		return put, err
	}
	put.Segments = len(list)
	named := c.NamedSegments()
	for i := range list {
		put.Hosts += len(list[i].Hosts)
		if id := list[i].ID; !named[id] {
			put.Unnamed = append(put.Unnamed, id)
		}
	}
	return put, nil
}

// followOVN follows the OVN of a configuration. A director that becomes a VTEP at its next start is no chassis until
// then: OVN's hosts would send it packets that it does not take.
func (d *Director) followOVN(c *model.Config) {
	if !d.first.VTEP.Given() {
		without := *c
		without.OVN = model.OVN{}
		c = &without
	}
	d.ovn.Set(d.ctx, c)
}

// segmentProblems are what is wrong with what is known of where hosts are.
func (d *Director) segmentProblems() []model.Problem {
	c := d.Config()
	now := time.Now()
	if totals, err := d.kernel.CountedUnder(d.unknown.counters()...); err == nil { // else the status reports that error, too
		d.unknown.take(totals, now)
	}
	return slices.Concat(d.segments.Problems(&c), d.ovn.Problems(), d.excess.problems(&c), otherTrunks(&c, d.kernel.HasVLAN), notForwarded(d.kernel.SegmentProblems()), d.unknown.problems(&c, now))
}

// otherTrunks are the problems of VLANs whose backends are sent to by another interface than on which the director
// answers there. The host may have interfaces for some VLANs: these packets leave by them.
func otherTrunks(c *model.Config, host func(vlan uint32) bool) (problems []model.Problem) {
	for _, o := range c.OtherTrunks() {
		if !host(o.Segment.ID) {
			problems = append(problems, model.Problem{Part: o.Segment.String(), Segment: o.Segment, Severity: model.SeverityWarning, Text: o.Problem(c),
				Fix: fmt.Sprintf("give interface: %s to %s in segments, or to its backends; or put the VLAN's trunk first in director.interfaces", c.Director.Neighbor.Interfaces[o.Interface].Name, o.Segment)})
		}
	}
	return problems
}

// notForwarded are the problems of segments of which the datapath does not forward all.
func notForwarded(found []model.SegmentProblem) (problems []model.Problem) {
	for i := range found {
		p := model.Problem{Part: "vtep", Severity: model.SeverityWarning, Text: found[i].Text}
		if of := found[i].Segment; of != (model.Segment{}) {
			p.Part, p.Segment, p.Text = of.String(), of, fmt.Sprintf("%s: %s", of, p.Text)
		}
		problems = append(problems, p)
	}
	return problems
}

// excess is what segments have beyond their limits. It is counted again only when the configuration is another:
// there may be many services, and this is asked for often.
type excess struct {
	services []model.Service
	segments []model.SegmentSettings
	most     model.SegmentLimits
	found    []model.Problem
}

func (e *excess) problems(c *model.Config) []model.Problem {
	if model.SameMemory(e.services, c.Services) && model.SameMemory(e.segments, c.Segments) && e.most == c.Director.SegmentLimits {
		return e.found
	}
	e.services, e.segments, e.most, e.found = c.Services, c.Segments, c.Director.SegmentLimits, nil
	if !c.LimitsSegments() {
		return nil
	}
	for _, over := range c.ExceededSegments(model.UsageBySegment(c.Services), nil) {
		e.found = append(e.found, model.Problem{Part: over.Segment.String(), Segment: over.Segment, Severity: model.SeverityWarning,
			Text: fmt.Sprintf("segment %s has more %s than the %d that %s lets it have: they go on, and no set that adds some is taken", over.Segment, over.Limit, over.Most, over.Key),
			Fix:  "remove some of it, or raise the limit"})
	}
	return e.found
}
