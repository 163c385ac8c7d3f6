package pool_test

import (
	"encoding/json"
	"net/netip"
	"strings"
	"testing"

	"weir.io/weir/kube/pool"
)

func TestParseRange(t *testing.T) {
	for text, want := range map[string]string{
		"203.0.113.7":               "203.0.113.7",
		"203.0.113.0/28":            "203.0.113.0-203.0.113.15",
		"203.0.113.8/29":            "203.0.113.8-203.0.113.15",
		"203.0.113.9-203.0.113.11":  "203.0.113.9-203.0.113.11",
		"203.0.113.1 - 203.0.113.2": "203.0.113.1-203.0.113.2",
		"2001:db8::/64":             "2001:db8::-2001:db8::ffff:ffff:ffff:ffff",
		"2001:db8::1":               "2001:db8::1",
	} {
		r, err := pool.ParseRange(text)
		if err != nil || r.String() != want {
			t.Errorf("%q is read as %s, error %v, want %s", text, r, err, want)
		}
		if again, err := pool.ParseRange(r.String()); err != nil || again != r {
			t.Errorf("%s is read again as %s, error %v", r, again, err)
		}
	}
	for text, want := range map[string]string{
		"":                          "is not an address",
		"203.0.113":                 "is not an address",
		"203.0.113.9/28":            "203.0.113.0/28 is the prefix",
		"203.0.113.2-203.0.113.1":   "ends before it begins",
		"203.0.113.2-2001:db8::1":   "ends in the other",
		"fe80::1%eth0":              "is not an address",
		"::ffff:203.0.113.1":        "is not an address",
		"203.0.113.1-203.0.113.2-3": "is not an address",
	} {
		if r, err := pool.ParseRange(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q is read as %s, error %v, want %q", text, r, err, want)
		}
	}
}

func TestCheck(t *testing.T) {
	for text, want := range map[string]string{
		`[{"name":"a","addresses":["203.0.113.0/28"]},{"name":"b","addresses":["2001:db8::/64","203.0.113.16/28"]}]`: "",
		`[{"addresses":["203.0.113.0/28"]}]`: "pools[0].name: is required",
		`[{"name":"a","addresses":["203.0.113.0/28"]},{"name":"a","addresses":["203.0.113.16/28"]}]`: `pools[1].name: "a" is already the name of pools[0]`,
		`[{"name":"a"}]`: "pools[0].addresses: is required",
		`[{"name":"a","addresses":["203.0.113.0/28"]},{"name":"b","addresses":["203.0.113.15"]}]`: "pools[1].addresses[0]: 203.0.113.15 and 203.0.113.0-203.0.113.15 have addresses in common",
		// The middle range ends first, and must not hide what the first one has.
		`[{"name":"a","addresses":["203.0.113.0/28","203.0.113.32/28"]},{"name":"b","addresses":["203.0.113.2","203.0.113.14"]}]`: "pools[1].addresses[1]: 203.0.113.14 and",
	} {
		var pools []pool.Pool
		if err := json.Unmarshal([]byte(text), &pools); err != nil {
			t.Fatal(err)
		}
		errs := pool.Check(pools)
		if want == "" && len(errs) > 0 || want != "" && !strings.Contains(errs.Error(), want) {
			t.Errorf("%s:\nproblems %v, want %q", text, errs, want)
		}
	}
}

func TestHas(t *testing.T) {
	whole, _ := pool.ParseRange("203.0.113.0/24")
	for address, want := range map[string]bool{
		"203.0.113.0": false, "203.0.113.1": true, "203.0.113.254": true, "203.0.113.255": false,
		"203.0.114.1": false, "2001:db8::": false, "::ffff:203.0.113.1": false,
	} {
		p := pool.Pool{Addresses: []pool.Range{whole}, AvoidBuggy: true}
		if got := p.Has(netip.MustParseAddr(address)); got != want {
			t.Errorf("a /24 without .0 and .255 has %s: %v", address, got)
		}
	}
}

// Pools that are used together have no address in common, whichever comes first.
func TestUsed(t *testing.T) {
	var used pool.Used
	for _, test := range []struct {
		name    string
		ranges  []string
		problem string
	}{
		{"a", []string{"203.0.113.16/28", "2001:db8::/64"}, ""},
		{"b", []string{"203.0.113.0-203.0.113.15", "203.0.113.32"}, ""},
		{"inside", []string{"198.51.100.1", "203.0.113.20-203.0.113.21"}, "addresses[1]: 203.0.113.20-203.0.113.21 has addresses in common with 203.0.113.16-203.0.113.31 of pool a"},
		{"around", []string{"203.0.113.0/24"}, "of pool b"},
		{"at the end", []string{"203.0.113.31-203.0.113.31"}, "of pool a"},
		{"from before", []string{"2001:db7::-2001:db8::"}, "of pool a"},
		{"itself", []string{"192.0.2.1-192.0.2.9", "192.0.2.9"}, "addresses[1]: 192.0.2.9 has addresses in common with 192.0.2.1-192.0.2.9 of the same pool"},
		{"after all", []string{"198.51.100.1", "192.0.2.0/24", "203.0.113.33"}, ""},
	} {
		err := used.Add(&pool.Pool{Name: test.name, Addresses: ranges(t, test.ranges...)})
		switch {
		case test.problem == "" && err != nil:
			t.Errorf("%s: %v", test.name, err)
		case test.problem != "" && (err == nil || !strings.Contains(err.Error(), test.problem)):
			t.Errorf("%s is added with error %v, want %s", test.name, err, test.problem)
		}
	}
}
