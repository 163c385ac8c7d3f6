package test

import (
	"fmt"
	"strings"
	"syscall"
	"testing"

	"weir.io/weir/internal/model"
	"weir.io/weir/lab/netlab"
	"weir.io/weir/lab/routerlab"
)

// patientBFD is BFD for a BGP neighbor whose session stays up while this machine is busy with
// other things.
const patientBFD = "bfd: {interval: 300ms, multiplier: 5}"

// frrBFD is bgpd's configuration of a router that would notice a silent director only after minutes
// without BFD.
func frrBFD() string {
	text := strings.ReplaceAll(frrText, " neighbor directors timers 1 3\n", " neighbor directors bfd 5 300 300\n")
	return strings.ReplaceAll(text, " neighbor directors6 timers 1 3\n", "")
}

// BFD sessions, and BGP routes with them, follow the datapath: they outlive the process, and go at
// once with the host, its link or its program. No route comes back before the datapath does.
// (TestBIRD shows a datapath that is lost while the process is gone: FRR does not look then.)
func TestRoutesStandForTheDatapath(t *testing.T) {
	t.Parallel()
	w := way{mode: "l2dsr"}
	l := newAnnouncing(t, 1, 2, "")
	l.frr = startFRR(t, l.router, routerlab.FRRConfig{BGP: frrBFD(), BFD: "bfd\n"})
	service, host := w.service("tcp", "80", everyBackend(1)), w.vip().String()+"/32"
	l.serve(service)
	neighbor := fmt.Sprintf("{address: %s, asn: %d, hold-time: 3m, restart-time: 5m, keep-when-silent: true, %s}", lanAddress(routerHost, false), routerAS, patientBFD)
	d := l.directFrom(0, service, bgpText(directorHost, neighbor), bgpText(directorHost+1, neighbor))[1]
	defer func() {
		if !t.Failed() {
			return
		}
		status, err := bfdStatus(t, d.host)
		peers, err2 := l.frr.Query("show bfd peers")
		t.Logf("weir bfd says %+v (%v)\nbfdd says %s (%v)\nweir logged:\n%s", status, err, peers, err2, d.logged())
	}()
	both, one := "via 10.2.0.11 10.2.0.12", "via 10.2.0.11"
	whole := func() {
		t.Helper()
		waitRouted(t, l.router, host, both)
		l.waitFresh(host)
		d.waitFor("have BGP and BFD, as the router sees it, too", func() bool {
			if (&bfdd{t, l.frr}).state(lanAddress(directorHost+1, false).String()) != "up" { // a process that stood still believes that its session is up
				return false
			}
			status, err := d.tryBGP()
			return err == nil && len(status.Neighbors) == 1 && status.Neighbors[0].State == model.SessionEstablished && status.Neighbors[0].BFD == "up"
		})
	}
	answers := func(when string) { l.answers(when, w) }
	whole()

	t.Run("the process is killed", func(t *testing.T) {
		changes := watchRoutes(t, l.router)
		before := bfdSessionOf(t, d.host)
		d.end(syscall.SIGKILL)
		l.waitSession("lose the session", lanAddress(directorHost+1, false), false)
		answers("without the process")
		if n := changes(host); n > 0 {
			t.Errorf("without the process, the router's route changed %d times", n)
		}
		if now := bfdSessionOf(t, d.host); now.State != "up" || now.Changes != before.Changes {
			t.Errorf("without the process, the BFD session is %s, and has changed %d times, not %d", now.State, now.Changes, before.Changes)
		}
		d.start()
		whole()
		if n := changes(host); n > 0 {
			t.Errorf("with another process, the router's route changed %d times", n)
		}
	})
	t.Run("the program is taken off", func(t *testing.T) {
		giveBack := takeProgramOff(t, d)
		waitRouted(t, l.router, host, one)
		d.waitFor("say why it tells nobody", func() bool {
			n := d.bgp().Neighbors[0]
			return n.State == model.SessionConnecting && strings.Contains(n.Problem, "not there (BFD: forwarding-reset)")
		})
		answers("without the other director's program")
		giveBack() // the director attaches its program again
		whole()
	})
	t.Run("the link is down", func(t *testing.T) {
		on(t, d.host, "ip", "link", "set", "eth0", "down")
		waitRouted(t, l.router, host, one)
		answers("without the other director's link")
		on(t, d.host, "ip", "link", "set", "eth0", "up")
		whole()
	})
	t.Run("the host stands still", func(t *testing.T) {
		processes := []int{d.cmd.Process.Pid, bfdProcess(t, d.host)}
		for _, pid := range processes {
			sendSignal(t, pid, syscall.SIGSTOP)
		}
		waitRouted(t, l.router, host, one)
		answers("without the other director's host")
		for _, pid := range processes {
			sendSignal(t, pid, syscall.SIGCONT)
		}
		whole()
	})
	t.Run("the router's BFD stands still", func(t *testing.T) {
		losses := d.bgp().Neighbors[0].Losses
		if err := l.frr.BFDD.Signal(syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		d.waitFor("end the session", func() bool {
			return strings.Contains(d.logged(), "BFD finds the way lost: detection-expired") && d.bgp().Neighbors[0].Losses > losses
		})
		d.waitFor("have one without BFD", func() bool {
			n := d.bgp().Neighbors[0]
			return n.State == model.SessionEstablished && n.BFD == "down"
		})
		if err := l.frr.BFDD.Signal(syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
		whole()
	})
}

// bfdSessionOf returns the one BFD session that a director has.
func bfdSessionOf(t *testing.T, h *netlab.Host) model.BFDSessionStatus {
	t.Helper()
	status, err := bfdStatus(t, h)
	if err != nil {
		t.Fatal(err)
	}
	if len(status.Sessions) != 1 {
		t.Fatalf("there are %d BFD sessions, not one", len(status.Sessions))
	}
	return status.Sessions[0]
}
