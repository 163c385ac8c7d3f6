package main

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"weir.io/weir/internal/api"
	"weir.io/weir/internal/config"
	"weir.io/weir/internal/model"
)

// wanted is a set as it is sent.
type wanted struct {
	Services []model.Service `json:"services"`
}

// randomSet has all kinds of services. Some are valid together, and some are not.
func randomSet(r *rand.Rand) wanted {
	one := func(list ...string) string { return list[r.IntN(len(list))] }
	w := wanted{Services: []model.Service{}}
	for i := range r.IntN(5) {
		s := model.Service{
			Name: fmt.Sprintf("%s-%d", one("web", "dns", "ünï", "日本", "a\"b\\c", "<&>", "y:z#{}"), i),
			VIP:  netip.AddrFrom4([4]byte{203, 0, 113, byte(10 + r.IntN(100))}), Protocol: model.TCP, Mode: model.Mode(r.IntN(4)),
			Policy: model.Policy(r.IntN(5)), Affinity: model.Affinity(r.IntN(2)), SNAT: r.IntN(8) == 0,
		}
		if r.IntN(3) == 0 {
			s.VIP = netip.MustParseAddr(fmt.Sprintf("2001:db8:1::%x", 1+r.IntN(200)))
		}
		if r.IntN(2) == 0 {
			s.Protocol = model.UDP
		}
		if first := uint16(r.IntN(9000)); first > 0 {
			s.Port = model.PortRange{First: first, Last: first + uint16(r.IntN(2)*r.IntN(300))}
		}
		if r.IntN(4) == 0 {
			s.Segment = model.Segment{Kind: model.SegmentVLAN, ID: uint32(1 + r.IntN(4094))}
		}
		if r.IntN(3) == 0 {
			s.Retention = model.Duration(time.Duration(1+r.IntN(5000)) * time.Millisecond)
		}
		if r.IntN(3) == 0 {
			least := uint32(r.IntN(3))
			s.MinHealthy, s.RingSize = &least, []uint32{1021, 65537, 1024}[r.IntN(3)]
		}
		if r.IntN(4) == 0 {
			s.Health = &model.HealthCheck{Kind: model.CheckKind(one("tcp", "http", "none", "dns")), Interval: model.Duration(time.Minute)}
		}
		if s.Protocol == model.UDP && r.IntN(2) == 0 {
			s.QUIC = []model.QUICConfig{{ID: uint8(r.IntN(7)), NonceLength: uint8(4 + r.IntN(12)), Key: model.QUICKey{byte(r.IntN(3)), 7}}}
		}
		for j := range r.IntN(6) {
			b := model.NewBackend()
			b.Address = netip.AddrFrom4([4]byte{10, 0, 0, byte(2 + j)})
			b.Weight, b.State = uint16(r.IntN(300)), []model.BackendState{model.Active, model.Active, model.Draining, model.Down}[r.IntN(4)]
			if r.IntN(2) == 0 {
				b.Name = fmt.Sprintf("backend-%d", j)
			}
			if s.Mode == model.NAT && r.IntN(2) == 0 {
				b.Port = uint16(1 + r.IntN(65535))
			}
			if r.IntN(5) == 0 {
				mode := model.Mode(r.IntN(4))
				b.Mode, b.MTU = &mode, uint16(1280+r.IntN(200))
			}
			if len(s.QUIC) > 0 {
				b.ServerID = model.SameServerID(model.ServerID([]byte{byte(j), byte(r.IntN(256))}))
			}
			s.Backends = append(s.Backends, b)
		}
		w.Services = append(w.Services, s)
	}
	return w
}

// GET returns what was put, byte for byte once defaults are filled in and keys hidden. Putting what
// GET returned changes nothing, and neither does a refused set.
func TestPutThenGet(t *testing.T) {
	const attempts, enough = 400, 60
	h := newHost(t)
	h.configure("coalesce: 1ms\ndirector: {interfaces: [eth0], store: {directory: "+h.beside("state")+"}}", "mine")
	p := h.start("director runs")
	defer p.stop()
	client := api.NewClient(h.socket)
	r := rand.New(rand.NewPCG(7, 7))
	put, keys := 0, 0
	before := "" // as GET returns it
	for n := 0; n < attempts && put < enough; n++ {
		set := randomSet(r)
		text, err := json.Marshal(set)
		if err != nil {
			t.Fatal(err)
		}
		change, err := client.PutSet(t.Context(), "cli", api.SetText{JSON: true, Text: text}, api.Condition{})
		valid, invalid := config.ParseSet("set", text)
		if err == nil && invalid != nil {
			t.Fatalf("a set is put in which something is wrong: %v\n%s", invalid, text)
		}
		if err == nil {
			put++
			for _, s := range valid {
				keys += len(s.QUIC)
			}
			want, err := json.Marshal(wanted{model.HideKeys(valid)})
			if err != nil {
				t.Fatal(err)
			}
			before = string(want)
		}
		if before == "" {
			continue
		}
		got, err := client.Set(t.Context(), "cli")
		if err != nil {
			t.Fatal(err)
		}
		again, err := json.Marshal(wanted{got.Services})
		if err != nil {
			t.Fatal(err)
		}
		if string(again) != before || change.Tag != "" && change.Tag != got.Tag {
			t.Fatalf("there is, with the tag %s after a change to %s,\n%s\nwant\n%s\nof\n%s", got.Tag, change.Tag, again, before, text)
		}
		change, err = client.PutSet(t.Context(), "cli", api.SetText{JSON: true, Text: again}, api.Condition{Tags: []string{got.Tag}})
		if err != nil || change.Tag != got.Tag || len(slices.Concat(change.Added, change.Changed, change.Removed)) > 0 {
			t.Fatalf("what was got changes something when it is put: %+v, %v\n%s", change, err, again)
		}
	}
	if put < enough || keys == 0 {
		t.Errorf("of %d sets %d could be put, with %d keys: too few to say anything", attempts, put, keys)
	}
}

// 10,000 services are one PUT.
func TestTenThousandServices(t *testing.T) {
	const services = 10000
	h := newHost(t)
	h.configure("director: {interfaces: [eth0], limits: {services: 16384, backends: 65536, ring-memory: 536870912}, store: {directory: "+h.beside("state")+"}}", "mine")
	p := h.start("director runs")
	defer p.stop()
	set := wanted{make([]model.Service, services)}
	for i := range set.Services {
		s := &set.Services[i]
		*s = model.Service{Name: fmt.Sprintf("service-%d", i), VIP: netip.AddrFrom4([4]byte{198, 18, byte(i >> 8), byte(i)}),
			Protocol: model.TCP, Port: model.PortRange{First: 443, Last: 443}, Mode: model.L2DSR}
		for j := range 2 {
			b := model.NewBackend()
			b.Address = netip.AddrFrom4([4]byte{10, 0, 0, byte(2 + j)})
			s.Backends = append(s.Backends, b)
		}
	}
	client := api.NewClient(h.socket)
	text, err := json.Marshal(set)
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	change, err := client.PutSet(t.Context(), "cli", api.SetText{JSON: true, Text: text}, api.Condition{None: true})
	if err != nil {
		t.Fatalf("after %v: %v\n%s", time.Since(began), err, p.stderr)
	}
	t.Logf("%d services in %d bytes are put in %v", services, len(text), time.Since(began).Round(time.Millisecond))
	if len(change.Added) != services {
		t.Errorf("%d services are added", len(change.Added))
	}
	got, err := client.Set(t.Context(), "cli")
	if err != nil || len(got.Services) != services || got.Tag != change.Tag {
		t.Errorf("%d services are got: %v", len(got.Services), err)
	}
	if status := h.status(); status.Services != services+1 {
		t.Errorf("%d services are forwarded", status.Services)
	}
}

// A backend is drained in all sets that have it, and by an override of the file, and gets
// connections again.
func TestDrainBackends(t *testing.T) {
	h := newHost(t)
	h.configure("coalesce: 1ms\ndirector: {interfaces: [eth0], store: {directory: "+h.beside("state")+"}}", "mine")
	p := h.start("director runs")
	defer p.stop()
	for owner, vip := range map[string]int{"cli": 10, "web": 11} {
		if out, ok := h.applies(t, owner, map[string]int{owner + "-service": vip}); !ok {
			t.Fatal(out)
		}
	}
	client := api.NewClient(h.socket)
	states := func() map[string]model.BackendState {
		t.Helper()
		list, err := client.Backends(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		states := map[string]model.BackendState{}
		for _, b := range list {
			states[b.Service] = b.State
		}
		return states
	}
	drain := func(args ...string) string {
		t.Helper()
		out, _ := h.weir(append([]string{"drain", "--socket", h.socket}, args...)...).CombinedOutput()
		return strings.Join(strings.Fields(string(out)), " ")
	}
	p.wait("reach the backends", func() bool {
		s := states()
		return s["mine"] == model.Active && s["cli-service"] == model.Active && s["web-service"] == model.Active
	})
	const head = "OWNER SERVICE BACKEND BEFORE STATE "
	last := func(service string) string {
		return "weir: service " + service + " has no active backend any more: those that were the last go on getting its new connections "
	}
	for _, test := range []struct{ args, want string }{
		{"10.0.0.2 --service web-service", last("web-service") + head + "web web-service 10.0.0.2 active draining"},
		{"10.0.0.2", last("cli-service") + last("mine") + last("web-service") + head + "cli cli-service 10.0.0.2 active draining file mine 10.0.0.2 active draining (beside the file, until weir undrain) web web-service 10.0.0.2 draining draining"},
		{"10.0.0.2 --owner cli --undo", head + "cli cli-service 10.0.0.2 draining active"},
		{"10.0.0.9", `weir: no service has a backend "10.0.0.9"`},
		{"mine", `weir: no service has a backend "mine": "mine" is a service, with mine/10.0.0.2`},
		{"mine/10.0.0.9", `weir: service "mine" has no backend "10.0.0.9"; it has mine/10.0.0.2`},
		{"nothing/10.0.0.2", `weir: there is no service "nothing"`},
		{"mine/10.0.0.2 --undo", head + "file mine 10.0.0.2 draining active"},
		{"mine/10.0.0.2 --service web", `weir: mine/10.0.0.2 names service "mine", and --service "web"`},
	} {
		if got := drain(strings.Fields(test.args)...); got != test.want {
			t.Errorf("weir drain %s prints\n  %s\nwant\n  %s", test.args, got, test.want)
		}
	}
	got := states()
	if got["mine"] != model.Active || got["cli-service"] != model.Active || got["web-service"] != model.Draining {
		t.Errorf("after that the backends are %v", got)
	}
	if set, err := client.Set(t.Context(), "web"); err != nil || set.Services[0].Backends[0].State != model.Draining {
		t.Errorf("the set has %+v: %v", set.Services, err)
	}
}
