package main

import (
	"fmt"

	"weir.io/weir/internal/bfd"
	"weir.io/weir/internal/bgp"
	"weir.io/weir/internal/model"
)

const passwordFix = "put the password on the first line of a file that root can read"

// bgpPasswords are the problems of sessions that go on, and could not begin again: their password
// cannot be read any more. A session that is not there says so itself.
func bgpPasswords(c *model.BGP, s model.BGPStatus) (found []model.Problem) {
	goesOn := map[string]bool{}
	for _, n := range s.Neighbors {
		goesOn[n.Name()] = n.State == model.SessionEstablished && n.Problem == ""
	}
	for i := range c.Neighbors {
		n := &c.Neighbors[i]
		if err := bgp.CheckPassword(n); err != nil && goesOn[n.Name()] {
			found = append(found, notAgain(n.Name(), err))
		}
	}
	return found
}

// bfdPasswords are the same of BFD. view is nil if no sessions are wanted.
func bfdPasswords(c *model.Config, view *model.BFDStatus) (found []model.Problem) {
	if view == nil {
		return nil
	}
	goesOn := map[string]bool{}
	for _, s := range view.Sessions {
		goesOn[s.Neighbor.String()] = s.State == bfd.Up.String() && s.Problem == ""
	}
	for _, s := range c.BFDSessions(nil) {
		if s.Authentication == nil || !goesOn[s.Neighbor.String()] {
			continue
		}
		if err := bfd.CheckPassword(s.Authentication); err != nil {
			found = append(found, notAgain(s.Neighbor.String(), err))
		}
	}
	return found
}

func notAgain(neighbor string, err error) model.Problem {
	return model.Problem{Part: neighbor, Severity: model.SeverityWarning, Fix: passwordFix,
		Text: fmt.Sprintf("the session with %s goes on, and cannot begin again: %v", neighbor, err)}
}
