package test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"weir.io/weir/internal/api"
	"weir.io/weir/internal/model"
	"weir.io/weir/lab/netlab"
	"weir.io/weir/lab/nic"
)

// emulating builds a weir that knows the NICs of labs, once for all tests.
var emulating = sync.OnceValues(func() (string, error) {
	path := filepath.Join(built, "weir-nics")
	out, err := exec.Command("go", "build", "-tags", "emulated_nic", "-o", path, "../cmd/weir").CombinedOutput()
	if err != nil {
		err = fmt.Errorf("build weir with emulated NICs: %w\n%s", err, out)
	}
	return path, err
})

// steeredLab is a lab whose director has a NIC with a flow table, 8 queues, and room for 64 rules.
func steeredLab(t *testing.T) (*lab, *nic.Emulated) {
	t.Helper()
	if os.Getenv(builtWeir) != "" {
		t.Skip("needs a weir that is built with the tag emulated_nic")
	}
	var link *netlab.Link
	l := newLab(t, size{backends: 3, uplink: func(l *lab) {
		link = l.Link(l.director, l.lan, netlab.LinkOptions{XDP: true, Queues: 8, A: lanPrefixes(directorHost, snatHost)})
	}})
	if err := l.Err(); err != nil {
		t.Fatal(err)
	}
	card, err := nic.Emulate(link.A, link.B, 8, 64)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := card.Close(); err != nil {
			t.Error(err)
		}
	})
	return l, card
}

// Flows with many packets get rules, and no connection breaks or goes to another backend while backends
// drain, leave and return, the NIC loses its rules, the director begins anew, and other queues are steered. What
// a director has put into the NIC goes when it detaches.
//
//	client --- router --- switch --- [NIC] director
//	                             --- backend1, backend2, backend3
func TestSteering(t *testing.T) {
	t.Parallel()
	l, card := steeredLab(t)
	binary, err := emulating()
	if err != nil {
		t.Fatal(err)
	}
	var services []string
	text := func(queues string, backends ...backend) string {
		services = nil
		for _, w := range memoryWays {
			services = append(services, w.service("tcp", fmt.Sprint(memoryPort), backends), w.service("udp", fmt.Sprint(memoryPort), backends))
		}
		steering := ""
		if queues != "" {
			steering = fmt.Sprintf("  steering: {queues: %s, packets-per-second: 50}\n", queues)
		}
		return strings.Replace(configText("eth0", "", services...), "  snat:\n", steering+"  snat:\n", 1)
	}
	first := text("2-7", everyBackend(3)...)
	for _, b := range l.backends {
		startDaemon(t, b, "agent", configText("", "eth0", services...))
	}
	l.serveMemory(memoryWays...)
	director := newDaemon(t, l.director, "run", first)
	director.binary = binary
	director.start()
	director.ready()
	f := &flowsUnderTest{lab: l}
	for range 2 {
		for _, w := range memoryWays[:4] {
			f.dial(w, "tcp")
			f.dial(w, "udp")
		}
	}
	steering := func() *model.SteeringStatus {
		status := director.directorStatus().Steering
		if status == nil || len(status.Interfaces) != 1 { // not yet, or it changes over
			return &model.SteeringStatus{Interfaces: []model.SteeredInterface{{Problem: "none"}}}
		}
		return status
	}
	// goOn goes on with all flows until that many have rules, by what the director says and the NIC has.
	until := func(when string, want int, more func(*model.SteeringStatus) bool) {
		t.Helper()
		defer func() {
			if t.Failed() {
				rules, err := card.Rules()
				t.Logf("%s: the NIC has %d rules (%v), and the director says %+v", when, rules, err, steering())
			}
		}()
		director.waitFor(fmt.Sprintf("have rules for %d flows, %s", want, when), func() bool {
			for range 40 {
				f.goOn(when)
			}
			rules, err := card.Rules()
			s := steering()
			return err == nil && s.Flows >= want && rules == s.Interfaces[0].Rules && rules >= want && s.Interfaces[0].Problem == "" && (more == nil || more(s))
		})
	}
	goOn := func(when string, want int) { t.Helper(); until(when, want, nil) }
	flows := 12 // each of six queues has a service's; the others, of eight services, are as many
	until("at the beginning", flows, func(s *model.SteeringStatus) bool { return s.Packets > 1000 })
	for _, change := range []struct {
		what     string
		backends []backend
	}{
		{"a backend drains", []backend{{number: 1, state: "draining"}, {number: 2}, {number: 3}}},
		{"another drains", []backend{{number: 1, state: "draining"}, {number: 2, state: "draining"}, {number: 3}}},
		{"both are back", everyBackend(3)},
	} {
		director.edit(text("2-7", change.backends...))
		director.ready()
		goOn(change.what, flows)
	}
	if err := card.Forget(); err != nil {
		t.Fatal(err)
	}
	until("the NIC has lost its rules", flows, func(s *model.SteeringStatus) bool { return s.Interfaces[0].Lost >= uint64(flows) })
	director.end(syscall.SIGKILL)
	f.goOn("without a process")
	director.start()
	director.ready()
	f.goOn("with another process")
	goOn("with another process", flows)
	if s := steering().Interfaces[0]; s.Inserted >= uint64(flows) {
		t.Errorf("the next process has inserted %d rules, and the earlier one had left %d", s.Inserted, flows)
	}
	director.edit(text("1,2", everyBackend(3)...))
	director.waitFor("refuse the file", func() bool { return len(problemsOf(director, model.ProblemFile)) > 0 })
	director.edit(text("1-2", everyBackend(3)...))
	director.ready()
	goOn("other queues", 4)
	director.edit(text("8-9", everyBackend(3)...))
	director.waitFor("say that there are no such queues", func() bool {
		found := problemsOf(director, model.ProblemSteering)
		return len(found) == 1 && strings.Contains(found[0].Text, "eth0 has 8 receive queues, and queue 9 is to be for flows with rules") && steering().Flows == 0
	})
	f.goOn("no such queues")
	noRules(t, card)
	director.edit(text("2-7", everyBackend(3)...))
	director.ready()
	goOn("as in the beginning", flows)
	director.edit(text("", everyBackend(3)...))
	director.waitFor("steer no flow", func() bool { return director.directorStatus().Steering == nil })
	noRules(t, card)
	f.goOn("without steering")
	director.edit(text("2-7", everyBackend(3)...))
	goOn("with steering again", flows)
	// A process that is to steer none, and ends before it has looked at the NIC, leaves that to the next one.
	director.end(syscall.SIGTERM)
	director.edit(text("", everyBackend(3)...))
	runs := func() int { return strings.Count(director.logged(), "director runs") }
	before := runs()
	director.start()
	director.waitFor("run", func() bool { return runs() > before })
	director.end(syscall.SIGTERM)
	director.start()
	director.ready()
	director.waitFor("take the rules out", func() bool { n, err := card.Rules(); return n == 0 && err == nil })
	f.goOn("without steering from the start")
	director.end(syscall.SIGTERM)
	director.edit(text("2-7", everyBackend(3)...))
	director.start()
	director.ready()
	goOn("with steering from the start", flows)
	director.end(syscall.SIGTERM)
	f.goOn("without a process")
	if out, err := l.director.Command(t.Context(), binary, "detach", "--bpffs", director.bpffs, "--socket", director.socket).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	noRules(t, card)
}

func noRules(t *testing.T, card *nic.Emulated) {
	t.Helper()
	if n, err := card.Rules(); n > 0 || err != nil {
		t.Errorf("%d rules are left (%v)", n, err)
	}
}

func problemsOf(d *daemon, kind model.ProblemKind) (found []model.Problem) {
	for _, p := range d.directorStatus().Problems {
		if p.Kind == kind {
			found = append(found, p)
		}
	}
	return found
}

// A veth has no flow table: the director says so in every place, and forwards.
func TestNoSteering(t *testing.T) {
	t.Parallel()
	l := newLab(t, size{backends: 1})
	service := way{mode: "l2dsr"}.service("tcp", fmt.Sprint(memoryPort), everyBackend(1))
	startDaemon(t, l.backends[0], "agent", configText("", "eth0", service))
	l.serveMemory(way{mode: "l2dsr"})
	text := strings.Replace(configText("eth0", "", service), "  snat:\n", "  steering: {queues: 1-3}\n  snat:\n", 1)
	director := startDaemon(t, l.director, "run", text)
	f := &flowsUnderTest{lab: l}
	f.dial(way{mode: "l2dsr"}, "tcp")
	const says = "no flow is steered: eth0 (veth): read the flow table: the driver has no flow table (ntuple filters)"
	director.waitFor("say why no flow is steered", func() bool {
		f.goOn("without a flow table")
		found := problemsOf(director, model.ProblemSteering)
		return len(found) == 1 && found[0].Severity == model.SeverityError && strings.HasPrefix(found[0].Text, says)
	})
	events := mustAskWeir[[]api.Event](director, "events", "--last", "100")
	told := false
	for _, e := range events {
		told = told || e.Problem != nil && e.Problem.Kind == model.ProblemSteering
	}
	if !told {
		t.Errorf("events say nothing of it: %+v", events)
	}
	out, _ := l.director.Command(t.Context(), weir, "doctor", "-c", director.config, "--socket", director.socket).CombinedOutput()
	if !strings.Contains(string(out), says) {
		t.Errorf("doctor does not say %q: %s", says, out)
	}
	director.edit(strings.Replace(text, "  steering: {queues: 1-3}\n", "", 1))
	director.waitFor("have no problem without steering", func() bool { return len(problemsOf(director, model.ProblemSteering)) == 0 })
}
