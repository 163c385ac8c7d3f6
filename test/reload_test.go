package test

import (
	"strings"
	"testing"
)

// The director reads its file again when it changes, and at SIGHUP. A bad file changes nothing, and
// the log says what is bad.
//
//	client --- router --- switch --- director
//	                             --- backend1, backend2
func TestReload(t *testing.T) {
	t.Parallel()
	w := way{mode: "gue"}
	l := newLab(t, size{backends: 2})
	for _, b := range l.backends {
		startNginx(t, b)
	}
	text := func(number int) string {
		return configText("eth0", "", w.service("tcp", "80", []backend{{number: number}}))
	}
	director := l.start(w.service("tcp", "80", everyBackend(2)))

	t.Run("a change is followed", func(t *testing.T) {
		director.edit(text(1))
		director.ready()
		wantAnswers(t, l, w, "backend1")
		director.edit(text(2))
		director.ready()
		wantAnswers(t, l, w, "backend2")
	})
	t.Run("a bad file changes nothing", func(t *testing.T) {
		director.edit(strings.Replace(text(1), "mode: gue", "mode: glue", 1))
		director.waitFor("say what is bad", func() bool {
			return strings.Contains(director.logged(), `unknown mode \"glue\"`) && strings.Contains(director.logged(), "weir.yaml:")
		})
		wantAnswers(t, l, w, "backend2")
		services, err := director.services()
		if err != nil || len(services) != 1 || len(services[0].Backends) != 1 || services[0].Backends[0].Name != "backend2" {
			t.Errorf("after a bad file the services are %+v (%v), want backend2 alone", services, err)
		}
	})
	t.Run("the next good one is followed", func(t *testing.T) {
		director.edit(text(1))
		director.ready()
		wantAnswers(t, l, w, "backend1")
	})
	t.Run("SIGHUP reads it again", func(t *testing.T) {
		before := strings.Count(director.logged(), "\n")
		director.hangUp()
		director.waitFor("log that it read the file", func() bool { return strings.Count(director.logged(), "\n") > before })
		wantAnswers(t, l, w, "backend1")
	})
}

// wantAnswers asks several times and expects that backend each time.
func wantAnswers(t *testing.T, l *lab, w way, name string) {
	t.Helper()
	for range 5 {
		if got := curl(t, l.client, w.url("name")); got != name {
			t.Errorf("%s answers, want %s", got, name)
		}
	}
}
