package hooks

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"weir.io/weir/internal/model"
)

func addresses(text string) []netip.Addr {
	list := []netip.Addr{}
	for _, one := range strings.Fields(text) {
		list = append(list, netip.MustParseAddr(one))
	}
	return list
}

// vips reads VIPs as they are written: "203.0.113.1 vlan:100/203.0.113.1".
func vips(text string) []model.VIP {
	list := []model.VIP{}
	for _, one := range strings.Fields(text) {
		var vip model.VIP
		segment, address, in := strings.Cut(one, "/")
		if !in {
			segment, address = "none", one
		}
		if err := vip.Segment.UnmarshalText([]byte(segment)); err != nil {
			panic(err)
		}
		vip.Address = netip.MustParseAddr(address)
		list = append(list, vip)
	}
	return list
}

func newCaller(t *testing.T) *Caller {
	t.Helper()
	c := New(slog.New(slog.NewTextHandler(t.Output(), nil)))
	t.Cleanup(c.Close)
	return c
}

// script writes a program and returns the hook that runs it.
func script(t *testing.T, text string) model.Hook {
	t.Helper()
	file := filepath.Join(t.TempDir(), "hook")
	if err := os.WriteFile(file, []byte("#!/bin/sh\ncd "+filepath.Dir(file)+"\n"+text), 0o755); err != nil {
		t.Fatal(err)
	}
	return model.Hook{Name: "cloud", Exec: []string{file, "first", "second argument"}, Timeout: model.Duration(20 * time.Second)}
}

// beside returns a file beside a hook's program.
func beside(h model.Hook, file string) string { return filepath.Join(filepath.Dir(h.Exec[0]), file) }

func waitFor(t *testing.T, what string, condition func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !condition(); time.Sleep(2 * time.Millisecond) { // between two looks
		if time.Now().After(end) {
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

func (c *Caller) waitCurrent(t *testing.T) model.HookStatus {
	t.Helper()
	waitFor(t, "the hook to be current", func() bool { return c.Status()[0].Current })
	return c.Status()[0]
}

// calls reads the calls that a script has written down.
func calls(t *testing.T, file string) (list []model.HookCall) {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var one model.HookCall
		if err := json.Unmarshal(lines.Bytes(), &one); err != nil {
			t.Fatalf("the hook was told %q: %v", lines.Text(), err)
		}
		list = append(list, one)
	}
	return list
}

// A program is told everything at the start, and then what is different, whoever runs it.
func TestProgram(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", "/nonexistent") // is not for the program
	hook := script(t, `cat >>calls; echo "$#:$2$NOTIFY_SOCKET" >>arguments`)
	c := newCaller(t)
	hooks := []model.Hook{hook}
	c.Set(hooks, vips("203.0.113.1 2001:db8::1"), nil)
	c.waitCurrent(t)
	c.Set(hooks, vips("203.0.113.1 2001:db8::1"), nil) // nothing new
	c.Set(hooks, vips("203.0.113.1 203.0.113.2"), nil)
	c.waitCurrent(t)
	c.Set(hooks, vips(""), nil)
	c.waitCurrent(t)
	c.Set(hooks, vips("203.0.113.9"), nil)
	c.waitCurrent(t)
	c.Withdraw()
	c.Set(hooks, vips("203.0.113.9 203.0.113.10"), nil) // which changes nothing any more
	status := c.waitCurrent(t)
	want := []model.HookCall{
		{Event: model.HookStart, Up: addresses("203.0.113.1 2001:db8::1"), Came: addresses("203.0.113.1 2001:db8::1")},
		{Event: model.HookChange, Up: addresses("203.0.113.1 203.0.113.2"), Came: addresses("203.0.113.2"), Went: addresses("2001:db8::1")},
		{Event: model.HookChange, Went: addresses("203.0.113.1 203.0.113.2")},
		{Event: model.HookChange, Up: addresses("203.0.113.9"), Came: addresses("203.0.113.9")},
		{Event: model.HookDrain, Went: addresses("203.0.113.9")},
	}
	for i := range want {
		want[i].Hook, want[i].Attempt = "cloud", 1
	}
	got := calls(t, beside(hook, "calls"))
	if diff := cmp.Diff(want, got, cmpopts.EquateComparable(netip.Addr{}), cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
	if text, _ := os.ReadFile(beside(hook, "calls")); strings.Contains(string(text), "null") {
		t.Errorf("empty lists are null: %s", text)
	}
	if text, _ := os.ReadFile(beside(hook, "arguments")); !strings.HasPrefix(string(text), "2:second argument\n") {
		t.Errorf("the arguments were %q", text)
	}
	if status.Calls != uint64(len(want)) || status.Failures != 0 || status.Problem != "" || status.Took.IsZero() || status.Running {
		t.Errorf("the status is %+v", status)
	}
}

// VIPs in segments are told beside the others: what is told of an address in one segment, or in none,
// says nothing about the same address in another. A program that knows no segments sees none of them.
func TestSegments(t *testing.T) {
	hook := script(t, `cat >>calls; tail -n 1 calls | grep -o '"up":[^]]*]' | head -n 1 >>untagged`)
	s := &server{answer: http.StatusNoContent}
	listener := httptest.NewServer(s)
	defer listener.Close()
	c := newCaller(t)
	hooks := []model.Hook{hook, {Name: "portal", URL: listener.URL, Timeout: model.Duration(10 * time.Second)}}
	for _, now := range []string{
		"203.0.113.1 vlan:100/203.0.113.1 vlan:200/203.0.113.1 vlan:200/203.0.113.2", "vlan:100/203.0.113.1 vlan:200/203.0.113.2", "203.0.113.1",
	} {
		c.Set(hooks, vips(now), nil)
		waitFor(t, "both hooks to be current", func() bool { return c.Status()[0].Current && c.Status()[1].Current })
		if got := c.Status()[0].Up; got != len(vips(now)) {
			t.Errorf("%d VIPs are to be told, want %d", got, len(vips(now)))
		}
	}
	c.Set(hooks, vips("203.0.113.1 vlan:100.300/203.0.113.1"), nil)
	waitFor(t, "both hooks to be current", func() bool { return c.Status()[0].Current && c.Status()[1].Current })
	c.Withdraw()
	waitFor(t, "both hooks to be current", func() bool { return c.Status()[0].Current && c.Status()[1].Current })
	of := func(id uint32, up, came, went string) model.HookSegment {
		return model.HookSegment{Segment: model.Segment{Kind: model.SegmentVLAN, ID: id}, Up: addresses(up), Came: addresses(came), Went: addresses(went)}
	}
	const a, b = "203.0.113.1", "203.0.113.2"
	want := []model.HookCall{
		{Event: model.HookStart, Up: addresses(a), Came: addresses(a), Segments: []model.HookSegment{of(100, a, a, ""), of(200, a+" "+b, a+" "+b, "")}},
		{Event: model.HookChange, Went: addresses(a), Segments: []model.HookSegment{of(100, a, "", ""), of(200, b, "", a)}},
		{Event: model.HookChange, Up: addresses(a), Came: addresses(a), Segments: []model.HookSegment{of(100, "", "", a), of(200, "", "", b)}},
		{Event: model.HookChange, Up: addresses(a), Segments: []model.HookSegment{of(100<<12|300, a, a, "")}},
		{Event: model.HookDrain, Went: addresses(a), Segments: []model.HookSegment{of(100<<12|300, "", "", a)}},
	}
	for i := range want {
		want[i].Hook, want[i].Attempt = "cloud", 1
	}
	if diff := cmp.Diff(want, calls(t, beside(hook, "calls")), cmpopts.EquateComparable(netip.Addr{}), cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
	untagged, err := os.ReadFile(beside(hook, "untagged"))
	if want := `"up":["203.0.113.1"]` + "\n" + `"up":[]` + "\n" + `"up":["203.0.113.1"]` + "\n" + `"up":["203.0.113.1"]` + "\n" + `"up":[]` + "\n"; err != nil || string(untagged) != want {
		t.Errorf("a program that knows no segments sees %q (%v), want %q", untagged, err, want)
	}
	const posted = `{"hook":"portal","event":"change","attempt":1,"up":[],"came":[],"went":["203.0.113.1"],"segments":[` +
		`{"segment":"vlan:100","up":["203.0.113.1"],"came":[],"went":[]},{"segment":"vlan:200","up":["203.0.113.2"],"came":[],"went":["203.0.113.1"]}]}`
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.got) != len(want) || !strings.HasSuffix(s.got[1], posted) {
		t.Errorf("the server got %q, want the second one to be %s", s.got, posted)
	}
}

// A failed call is tried again until the hook has taken it; what the call may have half done
// is undone; and its output is the problem.
func TestFailures(t *testing.T) {
	hook := script(t, "cat >>calls\nif [ -e broken ]; then echo; echo 'no route'; echo ' for you' >&2; exit 3; fi\n")
	if err := os.WriteFile(beside(hook, "broken"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	c := newCaller(t)
	k := newNotifier(hook, wanted{vips: vips("203.0.113.1")}, func() {}, c.log)
	k.pause = time.Millisecond
	k.hook = hook
	c.mu.Lock()
	c.hooks, c.vips, c.notifiers["cloud"] = []model.Hook{hook}, vips("203.0.113.1"), k
	c.mu.Unlock()
	c.running.Go(func() { defer close(k.ended); k.run(t.Context()) })
	waitFor(t, "three failures", func() bool { return c.Status()[0].Failures >= 3 })
	if s := c.Status()[0]; s.Problem != "exit status 3: no route for you" || s.Current || !s.Took.IsZero() {
		t.Errorf("the status is %+v", s)
	}
	c.Set(c.hooks, vips("203.0.113.2"), nil)
	waitFor(t, "a call with the other VIP", func() bool {
		all := calls(t, beside(hook, "calls"))
		return len(all[len(all)-1].Went) > 0
	})
	if err := os.Remove(beside(hook, "broken")); err != nil {
		t.Fatal(err)
	}
	status := c.waitCurrent(t)
	all := calls(t, beside(hook, "calls"))
	last := all[len(all)-1]
	want := model.HookCall{Hook: "cloud", Event: model.HookStart, Attempt: len(all), Up: addresses("203.0.113.2"), Came: addresses("203.0.113.2"), Went: addresses("203.0.113.1")}
	if diff := cmp.Diff(want, last, cmpopts.EquateComparable(netip.Addr{})); diff != "" {
		t.Errorf("the last call (-want +got):\n%s", diff)
	}
	if status.Problem != "" || status.Calls != uint64(len(all)) || status.Failures != status.Calls-1 {
		t.Errorf("after %d calls the status is %+v", len(all), status)
	}
}

func TestPauses(t *testing.T) {
	k := newNotifier(model.Hook{}, wanted{}, func() {}, nil)
	var got []string
	for _, attempts := range []int{1, 2, 3, 6, 7, 1000} {
		got = append(got, k.after(attempts).String())
	}
	if want := "1s 2s 4s 32s 1m0s 1m0s"; strings.Join(got, " ") != want {
		t.Errorf("the pauses are %v, want %s", got, want)
	}
}

// A program that does not end is killed with all that it has started, also where its time is
// not over but the director's is; and another call waits for that.
func TestTimeout(t *testing.T) {
	hook := script(t, "sleep 1000 & echo $! >>children\nwait\n")
	hook.Timeout = model.Duration(2 * time.Second) // in which it must have come as far as its child
	c := newCaller(t)
	c.Set([]model.Hook{hook}, vips("203.0.113.1"), nil)
	waitFor(t, "a failure", func() bool { return c.Status()[0].Failures > 0 })
	if s := c.Status()[0]; s.Problem != "it takes longer than 2s" || s.NextTry.IsZero() {
		t.Errorf("the status is %+v", s)
	}
	hook.Timeout = model.Duration(time.Hour)
	c.Set([]model.Hook{hook}, vips("203.0.113.1"), nil)
	waitFor(t, "a second child", func() bool { return len(children(t, hook)) == 2 })
	c.Close()
	for _, pid := range children(t, hook) {
		waitFor(t, fmt.Sprintf("process %d to be gone", pid), func() bool { return !alive(pid) })
	}
}

func children(t *testing.T, hook model.Hook) (pids []int) {
	t.Helper()
	text, err := os.ReadFile(beside(hook, "children"))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		pid := 0
		if n, _ := fmt.Sscanf(line, "%d\n", &pid); n == 1 {
			pids = append(pids, pid)
		}
	}
	return pids
}

// alive reports whether a process runs; a dead one may wait for somebody to ask how it ended.
func alive(pid int) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && syscall.Kill(pid, 0) == nil && !strings.Contains(string(text), ") Z ")
}

// Changes that come during a call are one call after it, and no two calls run at once.
func TestOneAtATime(t *testing.T) {
	hook := script(t, "mkdir running || touch twice\ncat >>calls\nwhile [ -e hold ]; do sleep 0.01; done\nrmdir running\n")
	hold := func() {
		if err := os.WriteFile(beside(hook, "hold"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	release := func() {
		if err := os.Remove(beside(hook, "hold")); err != nil {
			t.Fatal(err)
		}
	}
	hold()
	c := newCaller(t)
	hooks := []model.Hook{hook}
	c.Set(hooks, vips("203.0.113.1"), nil)
	began := func(n int) func() bool {
		return func() bool {
			_, err := os.Stat(beside(hook, "calls"))
			return err == nil && len(calls(t, beside(hook, "calls"))) == n
		}
	}
	waitFor(t, "a call", began(1))
	for i := range 50 {
		c.Set(hooks, vips(fmt.Sprintf("203.0.113.%d", i+2)), nil)
	}
	release()
	c.waitCurrent(t)
	all := calls(t, beside(hook, "calls"))
	if len(all) != 2 || all[1].Up[0].String() != "203.0.113.51" {
		t.Errorf("the calls were %+v", all)
	}
	// Back to what was taken before a call that has not ended: it has to hear that.
	hold()
	c.Set(hooks, vips("203.0.113.7"), nil)
	waitFor(t, "a third call", began(3))
	c.Set(hooks, vips("203.0.113.51"), nil)
	release()
	c.waitCurrent(t)
	if all = calls(t, beside(hook, "calls")); len(all) != 4 || all[3].Went[0].String() != "203.0.113.7" {
		t.Errorf("the calls were %+v", all)
	}
	// A hook that is another now, and one that goes.
	hold()
	hooks[0].Name = "cloud" // the same name, with other arguments
	other := hook
	other.Exec = append(append([]string{}, hook.Exec...), "third")
	c.Set([]model.Hook{other}, vips("203.0.113.8"), nil)
	waitFor(t, "a call of the hook that has changed", began(5))
	c.Set(nil, nil, nil)
	if list := c.Status(); len(list) != 0 {
		t.Errorf("without hooks the status is %+v", list)
	}
	c.Close()
	if _, err := os.Stat(beside(hook, "twice")); err == nil {
		t.Error("two calls ran at once")
	}
}

// server is what calls are posted to.
type server struct {
	mu     sync.Mutex
	answer int
	got    []string
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.got = append(s.got, fmt.Sprintf("%s %s %s %s %s", r.Method, r.URL, r.Header.Get("Content-Type"), r.Header.Get("Authorization"), strings.TrimSpace(string(body))))
	if s.answer == http.StatusFound {
		w.Header().Set("Location", "/elsewhere")
	}
	w.WriteHeader(s.answer)
	_, _ = io.WriteString(w, "quota\nexceeded")
}

// A server is sent a POST with a token, and anything but 2xx is a failure: also a
// redirection, which would lose what is posted.
func TestServer(t *testing.T) {
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := &server{answer: http.StatusNoContent}
	listener := httptest.NewServer(s)
	defer listener.Close()
	hook := model.Hook{Name: "cloud", URL: listener.URL + "/routes?zone=a", TokenFile: token, Timeout: model.Duration(10 * time.Second)}
	c := newCaller(t)
	c.Set([]model.Hook{hook}, vips("203.0.113.1"), nil)
	c.waitCurrent(t)
	want := `POST /routes?zone=a application/json Bearer secret {"hook":"cloud","event":"start","attempt":1,"up":["203.0.113.1"],"came":["203.0.113.1"],"went":[]}`
	s.mu.Lock()
	if len(s.got) != 1 || s.got[0] != want {
		t.Errorf("the server got %q, want %q", s.got, want)
	}
	s.mu.Unlock()
	for answer, problem := range map[int]string{
		http.StatusForbidden: "403 Forbidden: quota exceeded",
		http.StatusFound:     "302 Found: quota exceeded",
	} {
		s.mu.Lock()
		s.answer, s.got = answer, nil
		s.mu.Unlock()
		err := invoke(t.Context(), &hook, model.HookCall{})
		if err == nil || err.Error() != problem {
			t.Errorf("after %d the problem is %v, want %s", answer, err, problem)
		}
		if len(s.got) != 1 {
			t.Errorf("after %d the server got %q", answer, s.got)
		}
	}
	hook.TokenFile += "s"
	if err := invoke(t.Context(), &hook, model.HookCall{}); err == nil || !strings.Contains(err.Error(), "token-file: open") {
		t.Errorf("without its token-file the problem is %v", err)
	}
	hook.TokenFile = ""
	listener.Close()
	if err := invoke(t.Context(), &hook, model.HookCall{}); err == nil || !strings.Contains(err.Error(), "connection refused") {
		t.Errorf("without a server the problem is %v", err)
	}
	hook.URL, hook.Exec = "", []string{"/nowhere"}
	if err := invoke(t.Context(), &hook, model.HookCall{}); err == nil || !strings.Contains(err.Error(), "no such file") {
		t.Errorf("without a program the problem is %v", err)
	}
}

// A program may say anything, as much as it likes, and read nothing.
func TestLoudProgram(t *testing.T) {
	hook := script(t, "yes | head -c 1000000; echo >&2; exit 1\n")
	many := make([]netip.Addr, 20000)
	for i := range many {
		many[i] = netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
	}
	err := invoke(t.Context(), &hook, model.HookCall{Up: many})
	if err == nil || len(err.Error()) > mostSaid+100 || !strings.HasPrefix(err.Error(), "exit status 1: y y y") {
		t.Errorf("the problem is %.100s", fmt.Sprint(err))
	}
}
