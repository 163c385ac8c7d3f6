package bfd

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"weir.io/weir/internal/model"
)

// Status returns the state of the sessions, in the order of their neighbors.
func (s *Speaker) Status(ctx context.Context) (model.BFDStatus, error) {
	status := model.BFDStatus{Sessions: []model.BFDSessionStatus{}}
	err := s.ask(ctx, func() {
		for _, session := range s.sessions {
			one := session.status()
			if problem := s.problems[session.receives]; problem != "" {
				one.Problem = problem
			}
			status.Sessions = append(status.Sessions, one)
		}
		for why := Accepted + 1; why < discardReasons; why++ {
			status.Discards = append(status.Discards, model.Tallied{Name: why.String(), Count: s.discards[why]})
		}
		status.Late = model.Duration(s.late)
	})
	if err != nil {
		return model.BFDStatus{}, err
	}
	slices.SortFunc(status.Sessions, func(a, b model.BFDSessionStatus) int {
		return cmp.Or(a.Neighbor.Compare(b.Neighbor), a.Source.Compare(b.Source), cmp.Compare(fmt.Sprint(a.Multihop), fmt.Sprint(b.Multihop)))
	})
	return status, nil
}

// status returns the state of the session.
func (s *session) status() model.BFDSessionStatus {
	state, why := s.State()
	remote := s.Remote()
	status := model.BFDSessionStatus{
		Neighbor: s.want.Neighbor, Source: s.want.Source, Multihop: s.want.Multihop,
		State: state.String(), Since: s.since, Diagnostic: why.String(),
		RemoteState: remote.State.String(), RemoteDiagnostic: remote.Diagnostic.String(),
		Interval: model.Duration(s.Interval()), Detection: model.Duration(s.Detection()),
		Discriminator: s.Discriminator(), Remote: remote.Mine,
		TTLSecurity: s.want.TTLSecurity, Changes: s.changes, Sent: s.left, Received: s.received,
		Problem: cmp.Or(s.problem, s.guard.problem),
	}
	if s.guard.required {
		status.Authentication = s.want.Authentication.Type
	}
	if state != Up {
		status.Refused = s.refused
	}
	if held := s.Held(); held != NoDiagnostic {
		status.Held = held.String()
	}
	if losses, last := s.Losses(); losses > 0 {
		status.Losses, status.LastLoss = losses, last.String()
	}
	return status
}
