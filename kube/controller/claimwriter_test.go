package controller

import (
	"encoding/json"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"weir.io/weir/kube/pool"
)

// A claim that was written counts before it is read; a released address has an empty holder until
// the release is read.
func TestClaimWriter(t *testing.T) {
	a, b, c := netip.MustParseAddr("203.0.113.1"), netip.MustParseAddr("203.0.113.2"), netip.MustParseAddr("203.0.113.3")
	web, shop, now := pool.Service{Namespace: "x", Name: "web"}, pool.Service{Namespace: "x", Name: "shop"}, time.Unix(1e9, 0)
	holders := func(s ...pool.Service) (list pool.Holders) {
		for _, one := range s {
			list = append(list, pool.Holder{Service: one})
		}
		return list
	}
	l := newClaimWriter(nil)
	l.note(a, func() { l.made[a] = claim{holders: holders(web), version: "5"} })
	l.note(b, func() { l.gone[b] = true })
	l.note(c, func() { l.foreign[c] = foreign{claim{holders: holders(shop), version: "4"}, now.Add(time.Hour)} })
	l.see(a, claim{holders: holders(shop), version: "3"}, true)
	l.see(b, claim{holders: holders(shop), version: "2"}, true)
	want := map[netip.Addr]pool.Holders{a: holders(web), b: {{}}, c: holders(shop)}
	if d := cmp.Diff(want, l.news(now)); d != "" {
		t.Error("before it is read back (-want +got):", d)
	}
	if news := l.news(now); len(news) != 0 {
		t.Errorf("where nothing is new it says %v", news)
	}
	l.see(a, claim{holders: holders(web, shop), version: "6"}, true)
	l.see(b, claim{}, false)
	want = map[netip.Addr]pool.Holders{a: holders(web, shop), b: nil, c: nil}
	if d := cmp.Diff(want, l.news(now.Add(2*time.Hour))); d != "" || len(l.made)+len(l.gone)+len(l.foreign) != 0 {
		t.Errorf("after it is read back (-want +got): %s, and remembers %v %v %v", d, l.made, l.gone, l.foreign)
	}
}

// The part of a claim about the Services that share its address is read as it was written; if
// one Service has the address alone, the parentRef says so.
func TestClaimText(t *testing.T) {
	object := func() *networkingv1.IPAddress {
		return &networkingv1.IPAddress{ObjectMeta: metav1.ObjectMeta{Name: "203.0.113.1", ResourceVersion: "7"},
			Spec: networkingv1.IPAddressSpec{ParentRef: &networkingv1.ParentReference{Resource: "services", Namespace: "x", Name: "web"}}}
	}
	web, shop := pool.Service{Namespace: "x", Name: "web"}, pool.Service{Namespace: "y", Name: "shop"}
	for _, holders := range []pool.Holders{
		{{Service: web}}, {{Service: shop}},
		{{Service: web, Key: "k", Ports: []string{"80/TCP"}}, {Service: shop, Key: "k", Ports: []string{"443/TCP", "443/UDP"}}},
	} {
		a := object()
		a.Annotations = map[string]string{holdersKey: "what it said before"}
		if err := write(a, holders); err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(holders, claimOf(a).holders); d != "" {
			t.Error("read again (-want +got):", d)
		}
		if _, has := a.Annotations[holdersKey]; has == (len(holders) == 1 && holders[0].Service == web) {
			t.Errorf("%v is written with the annotations %v", holders, a.Annotations)
		}
	}
	broken := object()
	broken.Annotations = map[string]string{holdersKey: "{"}
	if got := claimOf(broken); len(got.holders) != 1 || got.holders[0].Service != web || got.version != "7" {
		t.Errorf("a claim with a broken annotation is %+v", got)
	}
}

// Whether a Service may join an address is judged by what its object says, whatever this process
// had read.
func TestJoinClaim(t *testing.T) {
	web, shop := pool.Service{Namespace: "x", Name: "web"}, pool.Service{Namespace: "y", Name: "shop"}
	shares := func(s pool.Service, key string, ports ...string) pool.Holder {
		return pool.Holder{Service: s, Key: key, Ports: ports}
	}
	for name, test := range map[string]struct {
		has, more, want pool.Holders
		by, refused     string
		changed         bool
	}{
		"the same":               {has: pool.Holders{{Service: web}}, more: pool.Holders{{Service: web}}, want: pool.Holders{{Service: web}}, by: managedBy},
		"of somebody else's":     {has: pool.Holders{{Service: web}}, more: pool.Holders{{Service: web}}, by: "ipallocator", refused: "it belongs to x/web, says ipallocator"},
		"another one's":          {has: pool.Holders{{Service: web}}, more: pool.Holders{{Service: shop}}, by: managedBy, refused: "it belongs to x/web, says weir.io"},
		"a key for what is had":  {has: pool.Holders{{Service: web}}, more: pool.Holders{shares(web, "k", "80/TCP")}, want: pool.Holders{shares(web, "k", "80/TCP")}, by: managedBy, changed: true},
		"another one with a key": {has: pool.Holders{shares(web, "k", "80/TCP")}, more: pool.Holders{shares(shop, "k", "81/TCP")}, want: pool.Holders{shares(web, "k", "80/TCP"), shares(shop, "k", "81/TCP")}, by: managedBy, changed: true},
		"a port that is had":     {has: pool.Holders{shares(web, "k", "80/TCP")}, more: pool.Holders{shares(shop, "k", "80/TCP")}, by: managedBy, refused: "it is shared with x/web, which has port 80/TCP of it, says weir.io"},
		"a port that moves":      {has: pool.Holders{shares(web, "k", "80/TCP")}, more: pool.Holders{shares(web, "k", "81/TCP"), shares(shop, "k", "80/TCP")}, want: pool.Holders{shares(web, "k", "81/TCP"), shares(shop, "k", "80/TCP")}, by: managedBy, changed: true},
	} {
		want, changed, refused := claim{holders: test.has}.with(test.more, test.by)
		why := ""
		if refused != nil {
			why = refused.Error()
		}
		if d := cmp.Diff(test.want, want); d != "" || changed != test.changed || why != test.refused {
			t.Errorf("%s: changed %v, refused %q, holders (-want +got): %s", name, changed, why, d)
		}
	}
}

// What a later version of weir has written into a claim is believed, as far as it names the
// holders, and not changed: no other Service joins or gets the address, and the holders keep it.
func TestClaimsOfNewerVersions(t *testing.T) {
	web, shop, other := pool.Service{Namespace: "x", Name: "web"}, pool.Service{Namespace: "y", Name: "shop"}, pool.Service{Namespace: "z", Name: "other"}
	holder := func(s pool.Service, port string) pool.Holder {
		return pool.Holder{Service: s, Key: "k", Ports: []string{port}}
	}
	of, err := json.Marshal(pool.Holders{holder(web, "80/TCP"), holder(shop, "443/TCP")})
	if err != nil {
		t.Fatal(err)
	}
	for what, row := range map[string]struct {
		text  string
		newer bool
	}{
		"this version":           {string(of), false},
		"a key that is unknown":  {strings.Replace(string(of), `"key"`, `"since":1,"key"`, 1), true},
		"an object with holders": {`{"format":2,"holders":` + string(of) + `}`, true},
	} {
		a := &networkingv1.IPAddress{ObjectMeta: metav1.ObjectMeta{Name: "203.0.113.1", Annotations: map[string]string{holdersKey: row.text}},
			Spec: networkingv1.IPAddressSpec{ParentRef: &networkingv1.ParentReference{Resource: "services", Namespace: "x", Name: "web"}}}
		c := claimOf(a)
		if len(c.holders) != 2 || c.newer != row.newer {
			t.Errorf("%s: it is read as %+v", what, c)
			continue
		}
		if _, changed, refused := c.with(pool.Holders{holder(shop, "8443/TCP")}, managedBy); changed == row.newer || refused != nil {
			t.Errorf("%s: who has it and wants another port of it: changed %v, refused %v", what, changed, refused)
		}
		if _, _, refused := c.with(pool.Holders{holder(other, "53/UDP")}, managedBy); (refused != nil) != row.newer {
			t.Errorf("%s: another one that would share it is refused with %v", what, refused)
		}
	}
}
