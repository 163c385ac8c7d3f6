package forecast

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"weir.io/weir/internal/model"
)

// sourceRanges are connections of clients that were let in and no longer are.
func sourceRanges(c *Change, _ *model.PlannedService) (model.Risk, bool) {
	if c.Before == nil || c.After == nil || len(c.After.SourceRanges) == 0 {
		return model.Risk{}, false
	}
	const text = "packets of open connections are dropped too, of clients that source-ranges leave out"
	if len(c.Before.SourceRanges) == 0 {
		every := netip.PrefixFrom(netip.IPv4Unspecified(), 0)
		if c.After.VIP.Is6() {
			every = netip.PrefixFrom(netip.IPv6Unspecified(), 0)
		}
		return model.Risk{Text: text}, !covered(every, c.After.SourceRanges)
	}
	var out []string
	for _, p := range c.Before.SourceRanges {
		if !covered(p, c.After.SourceRanges) {
			out = append(out, p.String())
		}
	}
	if len(out) == 0 {
		return model.Risk{}, false
	}
	const most = 8
	if more := len(out) - most; more > 0 {
		out = append(out[:most], fmt.Sprintf("%d more", more))
	}
	return model.Risk{Text: text + ": all or some of " + strings.Join(out, ", ")}, true
}

// kernelSources are connections that the kernel has, or gets, from somewhere in the middle.
func kernelSources(c *Change, _ *model.PlannedService) (model.Risk, bool) {
	if c.Before == nil || c.After == nil || c.Before.KernelSources == c.After.KernelSources {
		return model.Risk{}, false
	}
	text := "packets of open connections from director.kernel-sources are left to the kernel, which does not know them"
	if c.Before.KernelSources {
		text = "packets of open connections from director.kernel-sources are forwarded, and the kernel's connections end"
	}
	return model.Risk{Text: text}, true
}

// covered says whether every address of a prefix is in one of some prefixes.
func covered(p netip.Prefix, by []netip.Prefix) bool {
	if slices.ContainsFunc(by, func(q netip.Prefix) bool { return q.Bits() <= p.Bits() && q.Contains(p.Addr()) }) {
		return true
	}
	within := slices.DeleteFunc(slices.Clone(by), func(q netip.Prefix) bool { return !p.Contains(q.Addr()) })
	if len(within) == 0 {
		return false
	}
	low, high := halves(p)
	return covered(low, within) && covered(high, within)
}

// halves are the two halves of a prefix of more than one address.
func halves(p netip.Prefix) (low, high netip.Prefix) {
	bytes := p.Masked().Addr().AsSlice()
	bytes[p.Bits()/8] |= 0x80 >> (p.Bits() % 8)
	upper, _ := netip.AddrFromSlice(bytes)
	return netip.PrefixFrom(p.Masked().Addr(), p.Bits()+1), netip.PrefixFrom(upper, p.Bits()+1)
}
