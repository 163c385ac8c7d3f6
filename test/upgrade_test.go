package test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"weir.io/weir/internal/model"
	"weir.io/weir/lab/version"
)

var buildOtherABI = sync.OnceValues(func() (string, error) {
	return version.BuildOtherABI(context.Background(), "..", built)
})

// otherABI returns the path of another version's binary, built once for all tests.
func otherABI(t *testing.T) string {
	t.Helper()
	path, err := buildOtherABI()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// upgradeFrom names a commit that is tried in the place of the version with different maps.
const upgradeFrom = "WEIR_UPGRADE_FROM"

// otherVersion returns the path of the version that replaces this one in TestUpgradeLosesNothing.
func otherVersion(t *testing.T) string {
	t.Helper()
	commit := os.Getenv(upgradeFrom)
	if commit == "" {
		return otherABI(t)
	}
	path, err := version.BuildCommit(t.Context(), "..", built, commit)
	if err == nil {
		path, err = filepath.Abs(path)
	}
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// Another version with different maps replaces weir, director and agents, and is replaced again,
// ended in good order or killed at any moment, while 100,000 packets per second and 1,000
// connections go through all modes: no packet is lost, and no connection breaks. An earlier change
// of weights has left many connections with backends that get no new ones of their slots. In gue
// rows still name these backends; in the other modes, whose drain is over, only the flow memory
// keeps the connections.
//
//	client --- router --- switch --- director --- source, sink
//	                             --- backend1, backend2
func TestUpgradeLosesNothing(t *testing.T) {
	versions := map[string]string{"this": weir, "other": otherVersion(t)}
	l := newLab(t, size{backends: 2})
	packets := newStream(t, l)
	var ways []way
	for _, to := range streamVIPs {
		ways = append(ways, to.way)
	}
	services := func(weight int) []string {
		list := packets.services()
		for _, w := range ways {
			s := w.service("tcp", "7", []backend{{number: 1}, {number: 2, weight: weight}})
			if w.mode != "gue" { // in gue only the row knows the backend; all versions read this name of retention
				s = strings.Replace(s, "  backends:", "  drain: 2s\n  backends:", 1)
			}
			list = append(list, s)
		}
		return list
	}
	var agents []*daemon
	for _, b := range l.backends {
		agents = append(agents, startDaemon(t, b, "agent", configText("", "eth0", services(100)...)))
	}
	for i, b := range l.backends {
		for _, w := range ways {
			echoStream(t, b, w.at(i+1, 7))
		}
	}
	director := startDaemon(t, l.director, "run", configText("eth0, eth1", "", services(100)...))
	clients := connect(t, l, ways, 1000/len(ways))
	packets.start()
	clients.more(2000)
	director.edit(configText("eth0, eth1", "", services(30)...))
	waitFor(t, "the log of the weights before to be over", func() bool { return director.settled() })

	for i, step := range []struct {
		to     string
		signal os.Signal
	}{{"other", syscall.SIGTERM}, {"this", syscall.SIGTERM}, {"other", syscall.SIGKILL}, {"other", syscall.SIGKILL}} {
		director.replace(versions[step.to], step.signal)
		director.ready()
		agents[i%2].replace(versions[step.to], step.signal)
		clients.more(1000)
	}
	r := rand.New(rand.NewPCG(4, 7))
	for range 5 {
		to := versions[[]string{"this", "other"}[r.IntN(2)]]
		agents[r.IntN(2)].replace(to, syscall.SIGKILL)
		director.replace(to, syscall.SIGKILL)
		time.Sleep(time.Duration(r.IntN(3000)) * time.Millisecond) // any moment of the start will do
	}
	director.ready()
	for _, a := range agents {
		a.waitFor("run", func() bool {
			out, err := tryOn(t, a.host, weir, "status", "--alive", "--agent", "--socket", a.socket)
			return err == nil && strings.Contains(out, fmt.Sprintf(" %d, since ", a.cmd.Process.Pid))
		})
	}
	clients.more(2000)
	packets.wantAll()
	clients.wantWhole()
	if t.Failed() {
		for _, d := range append(agents, director) {
			t.Logf("weir %s on %s logged:\n%s", d.verb, d.host.Name, d.logged())
		}
	}
}

// replace ends the process and starts another binary.
func (d *daemon) replace(binary string, signal os.Signal) {
	d.t.Helper()
	d.end(signal)
	d.binary = binary
	d.start()
}

// settled reports whether the services that remember flows have moved slots from the second
// backend, and only the last generation is left.
func (d *daemon) settled() bool {
	services, err := d.services()
	if err != nil {
		return false
	}
	return !slices.ContainsFunc(services, func(s model.ServiceStatus) bool {
		remembers := s.Protocol == model.TCP && !strings.HasPrefix(s.Name, "gue")
		return remembers && (s.Backends[1].Slots > s.Backends[0].Slots/2 || s.Log.Generations > 1)
	})
}
