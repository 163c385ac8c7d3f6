package hooks

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"weir.io/weir/internal/model"
)

// services reads services as they are written: "web up: a up, b down; dns down: c down".
func services(text string) []model.ToldService {
	var list []model.ToldService
	for _, one := range strings.Split(text, "; ") {
		head, backends, _ := strings.Cut(one, ":")
		name, state, _ := strings.Cut(head, " ")
		s := model.ToldService{Name: name, ID: serviceID(name), State: model.HookState(state)}
		for _, b := range strings.Split(strings.TrimSpace(backends), ", ") {
			name, state, _ := strings.Cut(b, " ")
			s.Backends = append(s.Backends, model.ToldBackend{Name: name, Endpoint: endpointOf(name), State: model.HookState(state)})
			if state == "up" {
				s.Healthy++
			}
		}
		list = append(list, s)
	}
	return list
}

func serviceID(name string) model.ServiceID {
	return model.ServiceID{VIP: netip.AddrFrom4([4]byte{192, 0, 2, name[0]}), Protocol: model.TCP, Port: model.PortRange{First: 80, Last: 80}}
}

func endpointOf(name string) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, name[0]}), 8080)
}

// changed writes what a call tells: "web up (down) 1/2: b up (down)".
func changed(call model.HookCall) string {
	was := func(s model.HookState) string {
		if s == "" {
			return ""
		}
		return " (" + string(s) + ")"
	}
	var list []string
	for _, s := range call.Services {
		var backends []string
		for _, b := range s.Backends {
			if b.Address != endpointOf(b.Backend).Addr() || b.Port != 8080 {
				return "another address: " + b.Backend
			}
			backends = append(backends, b.Backend+" "+string(b.State)+was(b.Was))
		}
		if s.ServiceID != serviceID(s.Service) {
			return "another service: " + s.Service
		}
		list = append(list, s.Service+" "+string(s.State)+was(s.Was)+": "+strings.Join(backends, ", "))
	}
	return string(call.Event) + " " + strings.Join(list, "; ")
}

// A hook about backends is told what is not up at the start, and then what has changed since it took the
// last call. VIPs do not concern it, nor does the end of the director.
func TestBackends(t *testing.T) {
	hook := script(t, "cat >>calls")
	hook.About = []model.HookSubject{model.HookBackends}
	c := newCaller(t)
	hooks := []model.Hook{hook}
	for _, now := range []string{
		"web up: a up, b down; dns up: c up",
		"web up: a up, b up; dns up: c up",
		"web down: a down, b draining; dns up: c up",
		"web down: a down, b drained; dns up: c up",
		"web up: a up, d unknown; ftp up: c up",
	} {
		c.Set(hooks, vips("203.0.113.1"), services(now))
		c.waitCurrent(t)
		c.Set(hooks, vips("203.0.113.1 203.0.113.2"), services(now)) // nothing that concerns it
		c.waitCurrent(t)
	}
	c.Withdraw()
	c.waitCurrent(t)
	var got []string
	for _, call := range calls(t, beside(hook, "calls")) {
		if len(call.Up)+len(call.Came)+len(call.Went) > 0 {
			t.Errorf("the hook was told of VIPs: %+v", call)
		}
		got = append(got, changed(call))
	}
	want := []string{
		"start web up: b down",
		"change web up (up): b up (down)",
		"change web down (up): a down (up), b draining (up)",
		"change web down (down): b drained (draining)",
		"change dns gone (up): c gone (up); web up (down): a up (down), d unknown, b gone (drained)",
		"drain ",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
	text, err := os.ReadFile(beside(hook, "calls"))
	const line = `{"hook":"cloud","event":"change","attempt":1,"up":[],"came":[],"went":[],"services":[{"service":"web","vip":"192.0.2.119","protocol":"tcp","port":"80",` +
		`"state":"up","was":"up","healthy":2,"total":2,"backends":[{"backend":"b","address":"10.0.0.98","port":8080,"state":"up","was":"down"}]}]}`
	if err != nil || !strings.Contains(string(text), line+"\n") {
		t.Errorf("the hook was told %s, want a line %s", text, line)
	}
}

// What a failed call has told may have been taken or not: the next call says how it is now, even if that is
// what the hook took before.
func TestBackendsAfterFailure(t *testing.T) {
	s := &server{answer: http.StatusNoContent}
	listener := httptest.NewServer(s)
	defer listener.Close()
	hooks := []model.Hook{{Name: "pager", About: []model.HookSubject{model.HookBackends}, URL: listener.URL, Timeout: model.Duration(10 * time.Second)}}
	c := newCaller(t)
	c.Set(hooks, nil, services("web up: a up, b up"))
	c.waitCurrent(t)
	s.mu.Lock()
	s.answer = http.StatusServiceUnavailable
	s.mu.Unlock()
	c.Set(hooks, nil, services("web up: a up, b down"))
	waitFor(t, "a failure", func() bool { return c.Status()[0].Failures > 0 })
	s.mu.Lock()
	s.answer, s.got = http.StatusNoContent, nil
	s.mu.Unlock()
	c.Set(hooks, nil, services("web up: a up, b up"))
	c.waitCurrent(t)
	const last = `"backends":[{"backend":"b","address":"10.0.0.98","port":8080,"state":"up","was":"up"}]}]}`
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := len(s.got); n == 0 || !strings.HasSuffix(s.got[n-1], last) {
		t.Errorf("the server got %q, want the last one to end with %s", s.got, last)
	}
}

// A program has the capabilities that its hook names, and no others; one that weir has dropped is named.
func TestCapabilities(t *testing.T) {
	hook := script(t, "grep CapAmb /proc/self/status | cut -f 2 >>ambient; cat >/dev/null")
	inHex := func(set uint64) string { return fmt.Sprintf("%016x", set) }
	for _, given := range [][]string{nil, {"CAP_NET_ADMIN"}, {"CAP_NET_ADMIN", "CAP_NET_RAW"}} {
		hook.Capabilities = given
		if err := invoke(t.Context(), &hook, model.HookCall{}); err != nil {
			t.Fatal(err)
		}
	}
	hook.Capabilities = []string{"CAP_NO_SUCH"}
	if err := invoke(t.Context(), &hook, model.HookCall{}); err == nil || !strings.HasPrefix(err.Error(), "capabilities: ") {
		t.Errorf("an unknown capability: %v", err)
	}
	text, err := os.ReadFile(beside(hook, "ambient"))
	if want := strings.Join([]string{inHex(0), inHex(1 << unix.CAP_NET_ADMIN), inHex(1<<unix.CAP_NET_ADMIN | 1<<unix.CAP_NET_RAW), ""}, "\n"); err != nil || string(text) != want {
		t.Errorf("the programs' capabilities are %q (%v), want %q", text, err, want)
	}
}
