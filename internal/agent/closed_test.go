package agent

import (
	"log/slog"
	"testing"
)

// TestClosedAgentOwnsNothing: an agent that was closed, and looks at its host a last time, leaves
// the host and the lock of its pins to the next one.
func TestClosedAgentOwnsNothing(t *testing.T) {
	s := newStreet(t, true)
	a := s.agent(t, AttachAuto)
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	do(t, s.host, "start another agent", func() error {
		a.keeper.Look()
		next, err := Open(Options{Pin: s.host.BPFFS(), Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			return err
		}
		return next.Close()
	})
	do(t, s.host, "detach", func() error { return Detach(s.host.BPFFS()) })
}
