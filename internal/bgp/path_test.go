package bgp

import (
	"strings"
	"testing"
	"time"

	gobgp "github.com/osrg/gobgp/v4/pkg/packet/bgp"

	"weir.io/weir/internal/model"
)

// watched is a neighbor that BFD watches, with a session established.
func watched(t *testing.T, capabilities ...gobgp.ParameterCapabilityInterface) (*neighbor, *connection) {
	t.Helper()
	n := newNeighbor(t)
	n.config.BFD = &model.BGPNeighborBFD{}
	n.set("192.0.2.1/32")
	c, _ := n.establish(capabilities...)
	told := map[string]bool{}
	n.hears(c, told, func() bool { return told["end"] })
	return n, c
}

// bfd says how the session with the neighbor is.
func (n *neighbor) bfd(process int, change func(*model.BFDSessionStatus)) {
	session := model.BFDSessionStatus{Neighbor: loopback, State: "up"}
	change(&session)
	others := []model.BFDSessionStatus{{Neighbor: loopback.Next(), State: "down", Losses: 7, Held: "path-down"},
		{Neighbor: loopback, Multihop: true, State: "down", Losses: 9, Held: "path-down"}}
	n.speaker.SetBFD(model.BFDStatus{PID: process, Sessions: append(others, session)})
}

// A way that BFD finds lost takes the session with it at once, with a NOTIFICATION that says
// so, and there is a next one: whether its way is there, BGP finds out by itself.
func TestLostWay(t *testing.T) {
	up := func(*model.BFDSessionStatus) {}
	lost := func(s *model.BFDSessionStatus) {
		s.State, s.Losses, s.LastLoss = "down", 1, "detection-expired"
	}
	for name, keeps := range map[string]bool{"a neighbor": false, "one that keeps routes after a NOTIFICATION": true} {
		t.Run(name, func(t *testing.T) {
			n, c := watched(t, helper)
			want := "session: its BFD finds the way lost"
			if keeps {
				n.config.KeepWhenSilent = true
				n.set("192.0.2.1/32")
				c, _ = n.establish(helper)
				want = "hard reset: its BFD finds the way lost"
			}
			n.bfd(1, up)
			n.eventually("have both up", func(s model.BGPNeighborStatus) bool {
				return s.State == model.SessionEstablished && s.BFD == "up"
			})
			n.bfd(1, lost)
			if got := n.ends(c); !strings.Contains(got, want) {
				t.Errorf("the session ends with %q, want %q", got, want)
			}
			n.eventually("say why", func(s model.BGPNeighborStatus) bool {
				return strings.Contains(s.Problem, "detection-expired") && s.BFD == "down" && s.Losses > 0
			})
			n.establish(helper)
			n.eventually("have a session without BFD", func(s model.BGPNeighborStatus) bool {
				return s.State == model.SessionEstablished && s.BFD == "down"
			})
		})
	}
	// Up again at once: the loss is in the count, and nowhere else.
	n, c := watched(t)
	n.bfd(1, up)
	n.bfd(1, func(s *model.BFDSessionStatus) { s.Losses, s.LastLoss = 1, "neighbor-down" })
	if got := n.ends(c); !strings.Contains(got, "RFC 9384") {
		t.Errorf("with BFD up again, the session ends with %q", got)
	}
}

// Only a loss ends the session. These are no losses: changes of other sessions, a session
// that never was up or that the neighbor has switched off, another process, or a silent one.
func TestWayThatIsNotLost(t *testing.T) {
	n, c := watched(t)
	down := func(losses uint64) func(*model.BFDSessionStatus) {
		return func(s *model.BFDSessionStatus) { s.State, s.Losses = "down", losses }
	}
	for _, step := range []func(){
		func() { n.bfd(1, down(0)) },
		func() { n.bfd(1, func(*model.BFDSessionStatus) {}) },
		func() { n.bfd(1, down(0)) },
		func() { n.bfd(2, down(5)) },
		func() { n.speaker.SetBFD(model.BFDStatus{}) },
		func() { n.bfd(2, down(6)) },
		func() { n.config.BFD.Interval *= 2; n.set("192.0.2.1/32") },
	} {
		step()
	}
	n.set("192.0.2.1/32", "192.0.2.2/32")
	told := map[string]bool{}
	n.hears(c, told, func() bool { return told["192.0.2.2/32"] })
	n.speaker.SetBFD(model.BFDStatus{})
	n.eventually("not know of BFD", func(s model.BGPNeighborStatus) bool { return s.BFD == "unknown" && s.Losses == 0 })
}

// While the datapath is not there that routes stand for, there is no session: also not when
// the process that has said so says nothing more. Then there is one at once.
func TestHeldWay(t *testing.T) {
	n, c := watched(t)
	n.bfd(1, func(*model.BFDSessionStatus) {})
	held := func(s *model.BFDSessionStatus) { s.State, s.Held = "down", "forwarding-reset" }
	n.bfd(1, held)
	if got := n.ends(c); !strings.Contains(got, "RFC 9384") {
		t.Errorf("the session ends with %q", got)
	}
	waits := func(s model.BGPNeighborStatus) bool {
		return s.State == model.SessionConnecting && strings.Contains(s.Problem, "not there (BFD: forwarding-reset)")
	}
	n.eventually("wait", waits)
	n.speaker.SetBFD(model.BFDStatus{})
	if n.speaker.sessions[loopback.String()].now.Load().path.held == "" {
		t.Error("a process that says nothing more is taken to say that the datapath is there")
	}
	n.bfd(2, held)
	n.set("192.0.2.1/32", "192.0.2.3/32")
	n.eventually("still wait", waits)
	if n.log.count("not there (BFD") != 1 {
		t.Errorf("the log does not say once why:\n%s", n.log)
	}
	n.bfd(2, func(s *model.BFDSessionStatus) { s.State = "down" })
	c, _ = n.establish()
	told := map[string]bool{}
	n.hears(c, told, func() bool { return told["192.0.2.3/32"] })
	// It needs no BFD any more, whatever that says.
	n.bfd(2, held)
	n.eventually("wait again", waits)
	n.config.BFD = nil
	n.set("192.0.2.1/32")
	n.establish()
}

// When BFD finds the way lost, on whichever side, the neighbor has time to be done with the
// session before there is another, whatever BFD says meanwhile. Other ends are as before.
func TestPauseAfterBFD(t *testing.T) {
	lostThere := received([]byte{gobgp.BGP_ERROR_CEASE, subcodeBFDDown})
	hardReset := received([]byte{gobgp.BGP_ERROR_CEASE, gobgp.BGP_ERROR_SUB_HARD_RESET, gobgp.BGP_ERROR_CEASE, subcodeBFDDown})
	for name, c := range map[string]struct {
		err   error
		there time.Duration
		want  time.Duration
		bfd   bool
	}{
		"lost here":             {unreachable{"detection-expired"}, time.Hour, lostPause, true},
		"lost there":            {lostThere, time.Hour, lostPause, true},
		"lost there, all of it": {hardReset, time.Second, lostPause, true},
		"shut down there":       {received([]byte{gobgp.BGP_ERROR_CEASE, gobgp.BGP_ERROR_SUB_ADMINISTRATIVE_SHUTDOWN}), time.Hour, firstPause, false},
		"our own Cease":         {newFault(gobgp.BGP_ERROR_CEASE, subcodeBFDDown, "lost"), time.Hour, firstPause, false},
		"configured anew":       {errChanged, time.Second, 0, false},
		"the datapath is back":  {errBack, time.Second, 0, false},
	} {
		if got := after(c.err, c.there, 0, false); got != c.want || endedByBFD(c.err) != c.bfd {
			t.Errorf("%s: the pause is %v, want %v; by BFD: %v, want %v", name, got, c.want, endedByBFD(c.err), c.bfd)
		}
	}
}
