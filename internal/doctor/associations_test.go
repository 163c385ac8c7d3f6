package doctor

import (
	"net/netip"
	"strings"
	"testing"

	"weir.io/weir/internal/model"
)

// A server of SCTP that tells clients of other addresses is named, with these; of many, some are.
func TestListedAddresses(t *testing.T) {
	one := model.ListedAddresses{Service: "diameter", Backend: "hss-1", Asked: netip.MustParseAddr("203.0.113.10"),
		Addresses: []netip.Addr{netip.MustParseAddr("10.0.1.11"), netip.MustParseAddr("2001:db8::11")}}
	x := &examination{listed: func() []model.ListedAddresses { return []model.ListedAddresses{one} }}
	x.associations()
	if len(x.findings) != 1 {
		t.Fatalf("there are %d findings, want one: %v", len(x.findings), x.findings)
	}
	f := x.findings[0]
	for _, want := range []string{"hss-1", "10.0.1.11", "2001:db8::11", "beside 203.0.113.10"} {
		if f.Level != Fail || f.Check != "associations of diameter" || !strings.Contains(f.Text, want) {
			t.Errorf("it is said %q of %s, want %q", f.Text, f.Check, want)
		}
	}
	if !strings.Contains(f.Fix, "bind 203.0.113.10 only") {
		t.Errorf("what helps is %q", f.Fix)
	}
	many := make([]model.ListedAddresses, maxListed+7)
	for i := range many {
		many[i] = one
	}
	x = &examination{listed: func() []model.ListedAddresses { return many }}
	x.associations()
	if last := x.findings[len(x.findings)-1]; len(x.findings) != maxListed+1 || !strings.Contains(last.Text, "7 more") {
		t.Errorf("of %d there are %d findings, the last one %q", len(many), len(x.findings), last.Text)
	}
}
