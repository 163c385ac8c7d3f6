package forecast

import (
	"net/netip"
	"slices"
	"testing"

	"weir.io/weir/internal/model"
)

// Clients are at risk if some address was let in and is not any more, however the prefixes are
// cut.
func TestSourceRangesRisk(t *testing.T) {
	of := func(texts ...string) (list []netip.Prefix) {
		for _, text := range texts {
			list = append(list, netip.MustParsePrefix(text))
		}
		return list
	}
	const text = "packets of open connections are dropped too, of clients that source-ranges leave out"
	for _, test := range []struct {
		before, after []netip.Prefix
		want          string // "": none are
	}{
		{nil, nil, ""},
		{nil, of("0.0.0.0/0"), ""},
		{nil, of("0.0.0.0/1", "128.0.0.0/2", "192.0.0.0/2"), ""},
		{nil, of("0.0.0.0/1", "128.0.0.0/2", "192.0.0.0/3"), text},
		{nil, of("10.0.0.0/8"), text},
		{of("10.0.0.0/8"), nil, ""},
		{of("10.0.0.0/8"), of("10.0.0.0/8", "192.0.2.0/24"), ""},
		{of("10.1.0.0/16"), of("10.0.0.0/8"), ""},
		{of("10.0.0.0/8", "192.0.2.7/32"), of("10.0.0.0/8"), text + ": all or some of 192.0.2.7/32"},
		{of("10.0.0.0/8"), of("10.0.0.0/9"), text + ": all or some of 10.0.0.0/8"},
		{of("10.0.0.0/30"), of("10.0.0.0/32", "10.0.0.1/32", "10.0.0.3/32", "10.0.0.2/32"), ""},
		{of("10.0.0.0/30"), of("10.0.0.0/32", "10.0.0.1/32", "10.0.0.3/32"), text + ": all or some of 10.0.0.0/30"},
	} {
		before := service(model.GUE, 2)
		before.SourceRanges = test.before
		p := Of(changeOf(&before, with(before, func(s *model.Service) { s.SourceRanges = test.after })))
		at := slices.IndexFunc(p.Risks, func(r model.Risk) bool { return r.Reason == model.RiskSourceRanges })
		got := ""
		if at >= 0 {
			got = p.Risks[at].Text
		}
		if got != test.want {
			t.Errorf("%v to %v: the risk is %q, want %q", test.before, test.after, got, test.want)
		}
	}
}

// When a service begins or ceases to leave some sources to the kernel, the open
// connections of these sources end.
func TestKernelSourcesRisk(t *testing.T) {
	for _, before := range []bool{false, true} {
		for _, after := range []bool{false, true} {
			was := service(model.GUE, 2)
			was.KernelSources = before
			p := Of(changeOf(&was, with(was, func(s *model.Service) { s.KernelSources = after })))
			is := slices.ContainsFunc(p.Risks, func(r model.Risk) bool { return r.Reason == model.RiskKernelSources && r.When == model.WhenApplied })
			if is != (before != after) {
				t.Errorf("from %v to %v the risks are %+v", before, after, p.Risks)
			}
		}
	}
}
