package test

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"weir.io/weir/lab/version"
)

// beforeQuotas is a commit whose directors are VTEPs in all kinds of tenants' networks, before segments had quotas:
// maps of VTEPs, of services and of counters look different.
const beforeQuotas = "267a7598"

// Another version replaces a director that is a VTEP, and is replaced again, ended in good order or killed at any
// moment, while tenants in no segment, in VLANs, in VXLAN and in Geneve, whose VIPs, members and clients have the same
// addresses, keep connections in all modes. Which backend a connection has is in flow memory and full NAT's table alone. No
// connection breaks, new ones come, no host gets a packet of another tenant, and the director drops none. The hosts of
// the tenants in Geneve are known by the API.
//
//	hosts of none, vlan:7, vlan:8 --- switch --- director
//	hosts of vxlan:5001, vxlan:5002 --- hypervisors ---
//	hosts of geneve:5001, geneve:5002 --- Open vSwitch ---
func TestUpgradeOfVTEPLosesNothing(t *testing.T) {
	t.Parallel()
	versions := map[string]string{"this": weir, "other maps": otherABI(t)}
	steps := []upgradeStep{{"this", syscall.SIGTERM}, {"this", syscall.SIGKILL}, {"other maps", syscall.SIGTERM}, {"this", syscall.SIGTERM}, {"other maps", syscall.SIGKILL}, {"this", syscall.SIGKILL}}
	if before := builtBefore(t, beforeQuotas); before != "" {
		versions["before"] = before
		steps = append(steps, upgradeStep{"before", syscall.SIGTERM}, upgradeStep{"this", syscall.SIGTERM}, upgradeStep{"before", syscall.SIGKILL}, upgradeStep{"this", syscall.SIGKILL})
	}
	u := newUnderlay(t, "vxlan", false)
	u.director.Address("eth0", "172.16.0.11/24") // the first member's in all tenants' networks
	tenants := apartTenants(u, 2)
	for _, tenant := range tenants {
		tenant.keys, tenant.learned = ", policy: least-conn", strings.HasPrefix(tenant.name, "geneve:")
		tenant.prepare(t, u, tenants)
	}
	director := launchDaemon(t, u.director, "run", apartFile(u, tenants))
	director.waitFor("answer", director.listens)
	on(t, u.director, weir, "segments", "--file", write(t, u.director, "hosts.yaml", "segments:\n"+apartHosts(tenants)), "--socket", director.socket)
	director.waitFor("find all backends healthy", director.allUp)

	end := make(chan struct{})
	var callers sync.WaitGroup
	goOn := func(what string) {
		t.Helper()
		const each = 2 // questions of a connection
		for _, tenant := range tenants {
			before := tenant.asked.Load()
			waitFor(t, fmt.Sprintf("connections of %s to go on %s", tenant.name, what), func() bool {
				return tenant.asked.Load() >= before+uint64(each*keptOpen*len(tenant.modes))
			})
		}
	}
	for _, tenant := range tenants {
		for _, mode := range tenant.modes {
			for range keptOpen {
				callers.Go(func() { tenant.repeat(mode, 1<<30, end) })
			}
			callers.Go(func() { tenant.call(mode, end) })
		}
	}
	finish := sync.OnceFunc(func() {
		close(end)
		callers.Wait()
	})
	t.Cleanup(finish)
	goOn("at the first version")

	random := rand.New(rand.NewPCG(4, 7))
	for _, step := range steps {
		what := fmt.Sprintf("at version %s after %v", step.to, step.signal)
		director.replace(versions[step.to], step.signal)
		director.ready()
		goOn(what)
		for _, tenant := range tenants { // connections of a backend that drains stay there
			tenant.change(random)
		}
		director.edit(apartFile(u, tenants))
		director.ready()
		goOn(what + ", and a change of all services")
		if n := director.dropped(); n != "" {
			t.Errorf("%s the director has dropped packets: %s", what, n)
		}
	}
	names := slices.Sorted(maps.Keys(versions))
	for range 6 {
		director.replace(versions[names[random.IntN(len(names))]], syscall.SIGKILL)
		time.Sleep(time.Duration(random.IntN(2000)) * time.Millisecond) // any moment of the start will do
	}
	director.replace(weir, syscall.SIGKILL)
	director.ready()
	goOn("at the last version")
	finish()
	for _, tenant := range tenants {
		t.Logf("%s: %d questions were answered", tenant.name, tenant.asked.Load())
		tenant.wantApart(t)
	}
	if n := director.dropped(); n != "" {
		t.Errorf("the director has dropped packets: %s", n)
	}
	director.waitFor("have no problem", func() bool { return len(director.directorStatus().Problems) == 0 })
	if t.Failed() {
		t.Logf("the director logged:\n%s", director.logged())
	}
	wantCounting(t, tenants[0], tenants[1])
}

// upgradeStep ends the director by a signal, and starts a version.
type upgradeStep struct {
	to     string
	signal os.Signal
}

// keptOpen is how many connections of a tenant stay open in each mode.
const keptOpen = 5

// builtBefore returns the path of weir as it was at a commit; empty: the repository's history does not reach back to it.
func builtBefore(t *testing.T, commit string) string {
	t.Helper()
	if _, err := version.Commit(t.Context(), commit); errors.Is(err, version.ErrNoHistory) {
		t.Logf("the version %s is left out: %v", commit, err)
		return ""
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

// dropped are the packets that the director has dropped by the reasons for it, but for answers to probes of a process
// that has ended; empty: none.
func (d *daemon) dropped() string {
	d.t.Helper()
	var list []string
	for _, r := range d.directorStatus().Reasons {
		if strings.HasPrefix(r.Name, "drop_") && r.Name != "drop_answer_late" && r.Packets > 0 {
			list = append(list, fmt.Sprintf("%s %d", r.Name, r.Packets))
		}
	}
	return strings.Join(list, ", ")
}
