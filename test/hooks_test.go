package test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"weir.io/weir/internal/model"
)

// A hook about backends is told of a backend that fails and comes back, of one that is drained, and of a
// service that goes down with its last backend.
//
//	client --- router --- switch --- director
//	                             --- backend1, backend2
func TestHookAboutBackends(t *testing.T) {
	t.Parallel()
	w := way{mode: "gue"}
	l := newLab(t, size{backends: 2})
	var pages []string
	for _, b := range l.backends {
		pages = append(pages, filepath.Join(startNginx(t, b), "name"))
	}
	told := filepath.Join(l.director.Dir(), "told")
	hook := fmt.Sprintf("hooks:\n- {name: pager, about: [backends], exec: [/bin/sh, -c, \"cat >>%s\"]}\n", told)
	service := func(backends []backend) string {
		return w.service("tcp", "80", backends) + "  retention: 100ms\n  health: {kind: http, http: {path: /name}, interval: 50ms, fall: 2, panic: 0}\n"
	}
	director := l.start(service(everyBackend(2)))
	director.edit(configText("eth0", "", service(everyBackend(2))) + hook)

	// became waits until the last that the hook was told of a backend or service is this state.
	became := func(name string, want model.HookState) {
		t.Helper()
		var last model.HookState
		director.waitFor(fmt.Sprintf("tell that %s is %s", name, want), func() bool {
			last = ""
			for _, call := range hookCalls(t, told) {
				for _, s := range call.Services {
					if s.Service == name {
						last = s.State
					}
					for _, b := range s.Backends {
						if b.Backend == name {
							last = b.State
						}
					}
				}
			}
			return last == want
		})
	}
	director.waitHealth("up", "up")
	rename(t, pages[0], pages[0]+".off")
	became("backend1", model.HookDown)
	rename(t, pages[1], pages[1]+".off")
	became("backend2", model.HookDown)
	name := director.backends()[0].Service
	became(name, model.HookDown)
	for _, page := range pages {
		rename(t, page+".off", page)
	}
	became("backend1", model.HookUp)
	became("backend2", model.HookUp)
	became(name, model.HookUp)
	on(t, l.director, weir, "drain", "--socket", director.socket, "backend2")
	became("backend2", model.HookDrained)
	on(t, l.director, weir, "undrain", "--socket", director.socket, "backend2")
	became("backend2", model.HookUp)
	director.edit(configText("eth0", "", service(everyBackend(1))) + hook)
	became("backend2", model.HookGone)
	for _, call := range hookCalls(t, told) {
		if len(call.Up)+len(call.Came)+len(call.Went) > 0 {
			t.Errorf("the hook was told of VIPs: %+v", call)
		}
	}
}

// hookCalls are the calls that a hook has written down. The last line may be on its way.
func hookCalls(t *testing.T, file string) (calls []model.HookCall) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	whole, _, _ := cutLast(string(text), "\n")
	for lines := bufio.NewScanner(strings.NewReader(whole)); lines.Scan(); {
		var call model.HookCall
		if err := json.Unmarshal(lines.Bytes(), &call); err != nil {
			t.Fatalf("the hook was told %q: %v", lines.Text(), err)
		}
		calls = append(calls, call)
	}
	return calls
}

// cutLast cuts a text at the last separator.
func cutLast(text, separator string) (before, after string, found bool) {
	if at := strings.LastIndex(text, separator); at >= 0 {
		return text[:at], text[at+len(separator):], true
	}
	return "", text, false
}
