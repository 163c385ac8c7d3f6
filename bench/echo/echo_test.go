package echo

import (
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"testing"
	"time"
)

// The server is a process of its own, which the test starts by running itself.
func TestMain(m *testing.M) {
	if port, err := strconv.ParseUint(os.Getenv("WEIR_ECHO_PORT"), 10, 16); err == nil {
		if err := Serve(uint16(port), 0); err != nil {
			os.Stderr.WriteString(err.Error() + "\n")
		}
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// Requests are answered, over one connection and over a connection each.
func TestEcho(t *testing.T) {
	to := free(t)
	server := exec.Command(os.Args[0])
	server.Env = append(os.Environ(), "WEIR_ECHO_PORT="+strconv.Itoa(int(to.Port())))
	server.Stderr = os.Stderr
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = server.Process.Kill(), server.Wait() })
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) { // between two looks
		conn, err := net.Dial("tcp4", to.String())
		if err == nil {
			conn.Close()
			break
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
	for _, each := range []bool{false, true} {
		done := make(chan struct{})
		go func() { // its thread ends with it: it is bound to a CPU
			defer close(done)
			r, err := Ask(to, each, 20*time.Millisecond, 0)
			if err != nil || r.Requests == 0 || r.P50 <= 0 || r.P99 < r.P50 || each != (r.Connections > 1) && r.Requests > 1 {
				t.Errorf("a connection each %v: %+v (%v)", each, r, err)
			}
		}()
		<-done
	}
}

func free(t *testing.T) netip.AddrPort {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).AddrPort()
}
