package device

import (
	"errors"
	"net/netip"
	"slices"
	"testing"
	"unsafe"
)

// The layout is that of linux/ethtool.h on 64-bit machines.
func TestRuleLayout(t *testing.T) {
	t.Parallel()
	var r ruleRequest
	for what, is := range map[string][2]uintptr{
		"fs.m_u":         {unsafe.Offsetof(r.spec) + unsafe.Offsetof(r.spec.flowMask), 92},
		"fs.ring_cookie": {unsafe.Offsetof(r.spec) + unsafe.Offsetof(r.spec.queue), 168},
		"fs.location":    {unsafe.Offsetof(r.spec) + unsafe.Offsetof(r.spec.location), 176},
		"rule_cnt":       {unsafe.Offsetof(r.count), 184},
		"the whole":      {unsafe.Sizeof(r), 192},
	} {
		if is[0] != is[1] {
			t.Errorf("%s is at byte %d, want %d", what, is[0], is[1])
		}
	}
}

func TestRuleFlow(t *testing.T) {
	t.Parallel()
	for _, f := range []RuleFlow{
		{6, netip.MustParseAddrPort("192.0.2.1:1111"), netip.MustParseAddrPort("203.0.113.10:80")},
		{17, netip.MustParseAddrPort("192.0.2.1:2222"), netip.MustParseAddrPort("203.0.113.10:53")},
		{6, netip.MustParseAddrPort("[2001:db8::1]:1111"), netip.MustParseAddrPort("[2001:db8::2]:80")},
		{17, netip.MustParseAddrPort("[2001:db8::1]:1111"), netip.MustParseAddrPort("[2001:db8::2]:443")},
	} {
		kind, err := f.kind()
		if err != nil {
			t.Fatal(err)
		}
		s := flowSpec{kind: kind}
		s.flow, s.flowMask = f.bytesOf()
		if got, whole := s.flowOf(); got != f || !whole {
			t.Errorf("%+v is read as %+v, whole %v", f, got, whole)
		}
		partly := s
		partly.flowMask[1] = 0xf0
		tagged := s
		tagged.kind |= flowExtension
		tagged.extensionMask[10] = 0xff
		for _, other := range []flowSpec{partly, tagged, {kind: 0x10}} {
			if _, whole := other.flowOf(); whole {
				t.Errorf("%+v is a rule for more than one flow", other)
			}
		}
	}
	mixed := RuleFlow{6, netip.MustParseAddrPort("192.0.2.1:1"), netip.MustParseAddrPort("[2001:db8::1]:80")}
	if _, err := InsertRule("lo", Rule{Flow: mixed}, true); err == nil {
		t.Error("a rule has addresses of two families")
	}
}

// A driver without a flow table says so, each time.
func TestNoRules(t *testing.T) {
	t.Parallel()
	f := RuleFlow{6, netip.MustParseAddrPort("192.0.2.1:1111"), netip.MustParseAddrPort("203.0.113.10:80")}
	_, tableErr := RulesOf("lo")
	_, _, ruleErr := RuleAt("lo", 0)
	_, insertErr := InsertRule("lo", Rule{Flow: f, Queue: 1}, true)
	for what, err := range map[string]error{"table": tableErr, "rule": ruleErr, "insert": insertErr, "delete": DeleteRule("lo", 0),
		"switch": SwitchRulesOn("lo"), "steer": CanSteer("lo")} {
		if !errors.Is(err, ErrNoRules) {
			t.Errorf("%s: %v, want %v", what, err, ErrNoRules)
		}
	}
}

// RSS keeps its other queues, and every one of them.
func TestRSSWithoutQueues(t *testing.T) {
	t.Parallel()
	table := []uint32{0, 1, 2, 3, 0, 1, 2, 3}
	next, err := without(table, []uint32{2, 3})
	if want := []uint32{0, 1, 0, 1, 0, 1, 0, 1}; err != nil || !slices.Equal(next, want) {
		t.Errorf("%v without queues 2 and 3 is %v (%v), want %v", table, next, err, want)
	}
	if next, err := without(table, []uint32{7}); err != nil || !slices.Equal(next, table) {
		t.Errorf("%v without queue 7 is %v (%v)", table, next, err)
	}
	if _, err := without(table, []uint32{0, 1, 2, 3}); err == nil {
		t.Error("RSS is left without a queue")
	}
	if err := KeepRSSOff("lo", []uint32{1}); !errors.Is(err, ErrNoRSS) {
		t.Errorf("%v, want %v", err, ErrNoRSS)
	}
}
