package health

import (
	"errors"
	"net"
	"testing"
	"time"
)

// A datagram that somebody else has sent in the backend's name, and that comes before the right answer,
// fails no probe; without a right answer it is what is said.
func TestRightAnswerComesSecond(t *testing.T) {
	server, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	conn, err := net.Dial("udp", server.LocalAddr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	answer := func(texts ...string) {
		t.Helper()
		for _, text := range texts {
			if _, err := server.WriteTo([]byte(text), conn.LocalAddr()); err != nil {
				t.Fatal(err)
			}
		}
	}
	answer("forged", "all is well")
	if err := awaitText(conn, []byte("is well")); err != nil {
		t.Errorf("with the right answer as the second it fails: %v", err)
	}
	if err := conn.SetReadDeadline(time.Time{}); err != nil {
		t.Fatal(err)
	}
	answer("forged", "forged too")
	var wrong *Failure
	if err := awaitText(conn, []byte("is well")); !errors.As(err, &wrong) || wrong.Reason != Body {
		t.Errorf("without a right answer it says %v", err)
	}
}
