package sets

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"weir.io/weir/internal/api"
	"weir.io/weir/internal/config"
	"weir.io/weir/internal/desired"
	"weir.io/weir/internal/etcdclient"
	"weir.io/weir/internal/model"
)

// The status says whose fault it is that a set was not put: a client may try again if the store did
// not answer.
func TestWhatKeepsASetFromBeingPut(t *testing.T) {
	for _, test := range []struct {
		err  error
		want int
		says string
	}{
		{fmt.Errorf("ask etcd at https://10.0.0.9:2379: %w: deadline", etcdclient.ErrUnreachable), http.StatusServiceUnavailable, "https://10.0.0.9:2379"},
		{desired.ErrOtherSet, http.StatusPreconditionFailed, ""},
		{&desired.RefusedError{Conflict: true}, http.StatusConflict, ""},
		{&desired.RefusedError{}, http.StatusUnprocessableEntity, ""},
	} {
		var p *api.Problem
		if err := worded(test.err); !errors.As(err, &p) || p.Status != test.want || !strings.Contains(p.Detail, test.says) {
			t.Errorf("%v is answered as %v, want %d with %q", test.err, err, test.want, test.says)
		}
	}
	if err := worded(errors.New("no space left")); errors.As(err, new(*api.Problem)) {
		t.Errorf("a full disk is answered as %v", err)
	}
}

// A client of some segments is told of no other owner, service or number, whatever its set contradicts; and of its
// own mistakes as everybody.
func TestRefusalsForClientsOfSegments(t *testing.T) {
	refused := &desired.RefusedError{Conflict: true, Refusals: []desired.Refusal{
		{With: "blue", FieldError: model.FieldError{Path: "services[0].vip", Problem: `already belongs to service "blue-web" of owner "blue"`}},
		{Owner: "blue", FieldError: model.FieldError{Path: "services[7].name", Problem: `"x" is already the name of services[0]`}},
		{Shared: true, FieldError: model.FieldError{Path: "services", Problem: `5000 services are more than director.limits.services, 4096: owner "blue" has 4000`}},
		{FieldError: model.FieldError{Path: "services[1].ring-size", Problem: "100 is not a prime"}},
	}}
	limited := api.WithCaller(t.Context(), api.Caller{Name: "red", Role: model.RoleWrite, Owner: "red", Segments: "vxlan:5001"})
	var p *api.Problem
	if !errors.As(wordedFor(limited, refused), &p) || p.Status != http.StatusConflict {
		t.Fatalf("it is answered as %v", p)
	}
	said := fmt.Sprint(p.Detail, p.Errors)
	for _, secret := range []string{"blue", "4000", "5000", "services[7]", "4096"} {
		if strings.Contains(said, secret) {
			t.Errorf("it is told %q: %s", secret, said)
		}
	}
	for _, own := range []string{"services[0].vip: is not available on this director", "services: is not available", "services[1].ring-size: 100 is not a prime"} {
		if !strings.Contains(said, own) {
			t.Errorf("it is not told %q: %s", own, said)
		}
	}
	if !errors.As(wordedFor(t.Context(), refused), &p) || !strings.Contains(p.Detail, "blue-web") {
		t.Errorf("others are told %v", p)
	}
}

// A set of a client of segments has nothing elsewhere, and says nothing of where hosts are.
func TestSetsOfClientsOfSegments(t *testing.T) {
	limited := api.WithCaller(t.Context(), api.Caller{Name: "red-rw", Role: model.RoleWrite, Owner: "red", Segments: "vxlan:5001"})
	for _, test := range []struct{ service, backend, want string }{
		{"segment: 'vxlan:5001', mode: l2dsr", "", ""},
		{"segment: 'vxlan:5001', mode: nat", "segment: 'vxlan:5001'", ""},
		{"segment: 'vxlan:5002', mode: l2dsr", "segment: 'vxlan:5001'", "services[0].segment: the VIP is in segment vxlan:5002, and the client is for vxlan:5001 alone"},
		{"mode: l2dsr", "segment: 'vxlan:5001'", "services[0].segment: the VIP is in segment none"},
		{"segment: 'vxlan:5001', mode: l2dsr", "segment: 'vxlan:5002'", "services[0].backends[0].segment: the backend is in segment vxlan:5002"},
		{"segment: 'vxlan:5001', mode: l2dsr", "segment: none", "the backend is in segment none"},
		{"segment: 'vxlan:5001', mode: l2dsr", "vlan: 7", "the backend is in segment vlan:7"},
		{"segment: 'vxlan:5001', mode: gue", "", "the backend is in segment none"}, // tunnels end in no tenant's network
		{"segment: 'vxlan:5001', mode: l2dsr", "mode: ipip", "the backend is in segment none"},
		{"segment: 'vxlan:5001', mode: l2dsr", "vtep: 192.0.2.9, mac: '02:00:00:00:00:01'", "backends[0].mac: is not for clients of segments"},
		{"segment: 'vxlan:5001', mode: l2dsr", "vtep: 192.0.2.9, mac: '02:00:00:00:00:01', vni: 5002", "services[0].backends[0].vni: is not for clients"},
		{"segment: 'vxlan:5001', mode: l2dsr, kernel-sources: true", "", "services[0].kernel-sources: is not"},
	} {
		more := ""
		if test.backend != "" {
			more = ", " + test.backend
		}
		text := "services: [{name: a, vip: 172.16.0.10, protocol: tcp, port: 80, " + test.service + ", backends: [{address: 172.16.0.11" + more + "}]}]"
		services, err := config.ParseSet("set", []byte(text))
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		var p *api.Problem
		err = outside(limited, services)
		switch {
		case test.want == "" && err != nil:
			t.Errorf("%s: %v", text, err)
		case test.want != "" && (!errors.As(err, &p) || p.Status != http.StatusForbidden || !strings.Contains(refusals(p), test.want)):
			t.Errorf("%s: %v, want %q", text, err, test.want)
		}
		if err := outside(t.Context(), services); err != nil {
			t.Errorf("%s, by others: %v", text, err)
		}
	}
}

// refusals are all that a problem says of fields.
func refusals(p *api.Problem) (text string) {
	for _, e := range p.Errors {
		text += e.Field + ": " + e.Detail + "\n"
	}
	return text
}
