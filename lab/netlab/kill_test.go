package netlab

import (
	"bufio"
	"fmt"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

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

// holdSockets opens packet sockets, each of which the kernel waits for when it closes it.
func holdSockets() {
	for range 50 {
		if _, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW, unix.ETH_P_ALL<<8); err != nil {
			fmt.Fprintf(os.Stderr, "open a packet socket: %v\n", err)
			os.Exit(1)
		}
	}
	fmt.Println("open")
	_ = unix.Pause() // a select without cases is a deadlock for Go's runtime
}

// A killed process has closed all that it had when Kill returns, although it leaves its
// namespace before.
func TestKillWaitsForTheEnd(t *testing.T) {
	h := ForTest(t).Host("a")
	cmd := h.Command(t.Context(), "/proc/self/exe")
	cmd.Env = append(os.Environ(), "NETLAB_HOLD_SOCKETS=1")
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatalf("the process opened no sockets: %v", err)
	}
	pidfd, err := unix.PidfdOpen(cmd.Process.Pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pidfd)
	if ends(pidfd, time.Now()) {
		t.Fatal("the process ended by itself")
	}
	if err := h.Kill(); err != nil {
		t.Fatal(err)
	}
	if !ends(pidfd, time.Now()) {
		t.Error("the process has not ended yet")
	}
	_ = cmd.Wait() // it was killed
}
