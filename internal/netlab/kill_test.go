package netlab

import "testing"

// A host's processes end, whoever has started them, and no other's.
func TestKill(t *testing.T) {
	lab := ForTest(t)
	lost, other := lab.Host("lost"), lab.Host("other")
	start := func(h *Host) <-chan error {
		cmd := h.Command(t.Context(), "sleep", "1000")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- cmd.Wait() }()
		return ended
	}
	killed, runs := start(lost), start(other)
	if err := lost.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := <-killed; err == nil {
		t.Error("the process has ended by itself, and was not killed")
	}
	select {
	case err := <-runs:
		t.Errorf("another host's process has ended, too: %v", err)
	default:
	}
}
