package test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"weir.io/weir/internal/model"
)

// unitMemory returns the director unit's bounds on memory: MemoryMax, and its process's GOMEMLIMIT.
func unitMemory(t *testing.T) (most int, keeps string) {
	t.Helper()
	text, err := os.ReadFile("../contrib/systemd/weir.service")
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile(`(?s)GOMEMLIMIT=(\S+).*MemoryMax=(\d+)G`).FindStringSubmatch(string(text))
	if found == nil {
		t.Fatal("the director's unit does not bound its memory")
	}
	most, _ = strconv.Atoi(found[2])
	return most << 30, found[1]
}

// hostileBodies are bodies, by path and type, that would take far more memory than their length if
// nothing bounded it.
func hostileBodies(t *testing.T) (bodies [][3]string) {
	t.Helper()
	set := model.NewSlotSet(1 << 20)
	for i := range 32 { // in each page of the set
		set.Add(i << 15)
	}
	pages, err := set.MarshalText()
	if err != nil {
		t.Fatal(err)
	}
	repeat := func(n int, text string) string { return strings.TrimSuffix(strings.Repeat(text+",", n), ",") }
	log := `{"service":{},"log":{"generations":[` + repeat(100, `{"kept":"`+string(pages)+`"}`) + `]}}`
	none := `{"service":{"backends":[` + repeat(1<<18, `{             }`) + `]},"log":{}}`
	entry := "services:\n- {name: s, vip: 192.0.2.1, protocol: tcp, port: 1, mode: ipip, backends: ["
	return [][3]string{
		{"sets/a/documents", "application/json", `{"documents":[` + repeat(200, log) + `]}`},
		{"sets/b/documents", "application/json", `{"documents":[` + repeat(2, none) + `]}`},
		{"sets/c", "application/yaml", "x: &a {name: a, address: 10.0.0.1}\n" + entry + repeat(100000, "*a") + "]}\n"},
		{"sets/d", "application/yaml", strings.Repeat("{a: ", 1<<20)},
		{"plan?owner=e", "application/json", `{"services":[{"name":"s","backends":[` + repeat(1<<20, "{}") + `]}]}`},
	}
}

// A director that gets all of these at the same time refuses each, stays below its unit's bound on
// memory, and goes on.
func TestHostileBodies(t *testing.T) {
	t.Parallel()
	l := newLab(t, size{backends: 1})
	most, keeps := unitMemory(t)
	director := newDaemon(t, l.director, "run", configText("eth0", "", way{mode: "ipip"}.service("tcp", "80", everyBackend(1))))
	director.binary = write(t, l.director, "bounded", fmt.Sprintf("#!/bin/sh\nGOMEMLIMIT=%s exec %s \"$@\"\n", keeps, weir))
	if err := os.Chmod(director.binary, 0o755); err != nil {
		t.Fatal(err)
	}
	director.start()
	director.ready()
	client := http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", director.socket)
	}}}
	var sending sync.WaitGroup
	for _, body := range hostileBodies(t) {
		sending.Go(func() {
			for status := http.StatusServiceUnavailable; status == http.StatusServiceUnavailable; { // another body is being read
				method := http.MethodPut
				if strings.HasPrefix(body[0], "plan") {
					method = http.MethodPost
				}
				request, err := http.NewRequest(method, "http://weir/v1/"+body[0], strings.NewReader(body[2]))
				if err != nil {
					t.Error(err)
					return
				}
				request.Header.Set("Content-Type", body[1])
				answer, err := client.Do(request)
				if err != nil {
					t.Errorf("%s: %v", body[0], err)
					return
				}
				said, _ := io.ReadAll(answer.Body)
				answer.Body.Close()
				if status = answer.StatusCode; status < 400 {
					t.Errorf("%s is answered by %d: %s", body[0], status, said)
				}
			}
		})
	}
	sending.Wait()
	if services, err := director.services(); err != nil || len(services) != 1 {
		t.Errorf("the director has the services %+v, %v", services, err)
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", director.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	var peak int
	for line := range strings.Lines(string(status)) {
		if rest, is := strings.CutPrefix(line, "VmHWM:"); is {
			peak, _ = strconv.Atoi(strings.Fields(rest)[0])
		}
	}
	t.Logf("it took %d MiB at most", peak>>10)
	if peak <= 0 || peak<<10 > most {
		t.Errorf("the director has taken %d kB, of %d bytes that its unit gives it", peak, most)
	}
	director.end(syscall.SIGTERM)
}
