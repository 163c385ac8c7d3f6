package main

import (
	"strings"
	"testing"

	"weir.io/weir/internal/api"
	"weir.io/weir/internal/model"
)

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
	for _, test := range []struct{ args, want string }{
		{"10.0.0.2 --service web-service", head + "web web-service 10.0.0.2 active draining"},
		{"10.0.0.2", head + "cli cli-service 10.0.0.2 active draining file mine 10.0.0.2 active draining (beside the file, until weir undrain) web web-service 10.0.0.2 draining draining"},
		{"10.0.0.2 --owner cli --undo", head + "cli cli-service 10.0.0.2 draining active"},
		{"10.0.0.9", `weir: no set has a backend "10.0.0.9"`},
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
