package test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"weir.io/weir/internal/model"
)

// Traffic leaves backends whose check fails and comes back to them; too many failures are
// not believed; a check is switched on and off while clients are served.
//
//	client --- router --- switch --- director
//	                             --- backend1, backend2, backend3
func TestHealth(t *testing.T) {
	t.Parallel()
	w := way{mode: "gue"}
	l := newLab(t, size{backends: 3})
	var pages []string
	for _, b := range l.backends {
		pages = append(pages, filepath.Join(startNginx(t, b), "name"))
	}
	// Nginx keeps running, and answers 404.
	fail := func(number int) { rename(t, pages[number-1], pages[number-1]+".off") }
	heal := func(number int) { rename(t, pages[number-1]+".off", pages[number-1]) }
	service := func(health string) string { return w.service("tcp", "80", everyBackend(3)) + health }
	const checked = "  health: {kind: http, http: {path: /name}, interval: 50ms, fall: 2, panic: 50}\n"

	director := l.start(service(checked))
	director.waitHealth("up", "up", "up")
	wantOnly(t, l, w, "backend1", "backend2", "backend3")

	fail(1)
	director.waitHealth("down", "up", "up")
	wantOnly(t, l, w, "backend2", "backend3")
	// The last probe may also have failed because nginx did not get the CPU in time.
	director.waitFor("show that a backend says 404", func() bool {
		b := director.backends()[0]
		return (b.State == model.Down || b.State == model.Suspect) && b.Health.Reason == "status" && strings.Contains(b.Health.Detail, "GET /name was answered with 404 Not Found")
	})

	t.Run("a restart does not begin with what is down", func(t *testing.T) {
		director.end(syscall.SIGKILL)
		director.start()
		director.waitFor("answer", func() bool {
			for range 5 {
				if got := curl(t, l.client, w.url("name")); got == "backend1" {
					t.Fatal("backend1 is asked, which is down")
				}
			}
			services, err := director.services()
			return err == nil && len(services) == 1
		})
		director.waitHealth("down", "up", "up")
		wantOnly(t, l, w, "backend2", "backend3")
	})

	t.Run("switched off and on", func(t *testing.T) {
		director.edit(configText("eth0", "", service(strings.Replace(checked, "kind: http", "kind: none", 1))))
		director.waitHealth("", "", "")
		director.waitFor("use all", func() bool { return director.backends()[0].State == model.Active })
		director.edit(configText("eth0", "", service(checked)))
		director.waitHealth("down", "up", "up")
		if log := director.logged(); strings.Contains(log, "backend is down\" service=gue-4in4-tcp-80 backend=backend2") {
			t.Errorf("backend2 was down for a moment:\n%s", log)
		}
		wantOnly(t, l, w, "backend2", "backend3")
	})

	t.Run("too few are healthy", func(t *testing.T) {
		fail(2)
		director.waitHealth("down", "down", "up")
		director.waitFor("panic", func() bool {
			services, err := director.services()
			return err == nil && *services[0].Health == model.ServiceHealth{Kind: model.CheckHTTP, Up: 1, Down: 2, Panic: true} &&
				!slices.ContainsFunc(services[0].Backends, func(b model.BackendStatus) bool { return b.State != model.Active })
		})
		if status := on(t, director.host, weir, "status", "--alive", "--socket", director.socket); !strings.Contains(status, "too few backends are healthy") {
			t.Errorf("weir status does not say so:\n%s", status)
		}
		if log := director.logged(); !strings.Contains(log, "too few backends are healthy") {
			t.Errorf("the log does not say so:\n%s", log)
		}
		heal(2)
		director.waitHealth("down", "up", "up")
		director.waitFor("leave backend1", func() bool { return director.backends()[0].State == model.Down })
		wantOnly(t, l, w, "backend2", "backend3")
	})

	heal(1)
	director.waitHealth("up", "up", "up")
	wantOnly(t, l, w, "backend1", "backend2", "backend3")

	// Panic comes of what checks find, and a backend's state of what they find and of whether there is a
	// way to it: where panic and a state seem to contradict each other, the reason is there.
	t.Run("too few are healthy, and none is reached", func(t *testing.T) {
		before := director.directorStatus()
		for _, b := range l.backends {
			on(t, b, "ip", "link", "set", "eth0", "down")
		}
		director.waitFor("lose all", func() bool {
			services, err := director.services()
			if err != nil || !services[0].Health.Panic {
				return false
			}
			lost := 0
			for _, b := range services[0].Backends {
				if b.State == model.Active {
					continue
				}
				if lost++; b.Unreachable == "" || *b.Share != 0 {
					t.Fatalf("in panic, %s is %s with share %v, and it is said why: %q", b.Name, b.State, *b.Share, b.Unreachable)
				}
			}
			return lost == len(l.backends)
		})
		if status := on(t, director.host, weir, "status", "--alive", "--socket", director.socket); !strings.Contains(status, "all that can be reached are used") {
			t.Errorf("weir status says that more are used:\n%s", status)
		}
		// None of this was a version of the file.
		if now := director.directorStatus(); !now.Applied.Equal(before.Applied) || !now.Changed.After(before.Changed) {
			t.Errorf("the file was applied at %v, and later at %v; what runs changed at %v, and later at %v", before.Applied, now.Applied, before.Changed, now.Changed)
		}
		for _, b := range l.backends {
			on(t, b, "ip", "link", "set", "eth0", "up")
		}
		director.waitHealth("up", "up", "up")
	})
}

func rename(t *testing.T, from, to string) {
	t.Helper()
	if err := os.Rename(from, to); err != nil {
		t.Fatal(err)
	}
}

// waitHealth waits until the director's probes have found these states of the backends; "": not
// checked.
func (d *daemon) waitHealth(want ...string) {
	d.t.Helper()
	d.waitFor("find the backends "+strings.Join(want, ", "), func() bool {
		services, err := d.services()
		return err == nil && len(services) == 1 && slices.EqualFunc(services[0].Backends, want, func(b model.BackendStatus, state string) bool {
			return (b.Health == nil) == (state == "") && (b.Health == nil || string(b.Health.State) == state)
		})
	})
}

// wantOnly asks until each of these backends has answered and no other does: the director may have
// to tell the kernel first.
func wantOnly(t *testing.T, l *lab, w way, names ...string) {
	t.Helper()
	answered := map[string]bool{}
	waitFor(t, "only "+strings.Join(names, ", ")+" to answer", func() bool {
		clear(answered)
		for range 30 {
			// Not curl, which fails: a backend that still answers 404 may not have left yet.
			name, _ := tryOn(t, l.client, "curl", "--silent", "--fail", "--globoff", "--max-time", "10", w.url("name"))
			answered[name] = true
		}
		return len(answered) == len(names) && !slices.ContainsFunc(names, func(n string) bool { return !answered[n] })
	})
}
