package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Doctor finds what keeps BFD from working, or lets any host speak BFD in a neighbor's name.
func TestDoctorLooksAtBFD(t *testing.T) {
	h := newHost(t)
	secret := filepath.Join(filepath.Dir(h.file), "password")
	if err := os.WriteFile(secret, []byte("secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	bfd := func(neighbor string) {
		h.configure(fmt.Sprintf("%s\nbfd: {neighbors: [{address: 10.0.0.2, %s}]}", onEth0, neighbor), "web")
	}
	authentication := "authentication: {password-file: %s}"
	for _, test := range []struct {
		neighbor string
		mode     os.FileMode // of the password's file
		code     int
		says     string
	}{
		{"multihop: true", 0o600, 0, "warn bfd neighbor 10.0.0.2: over several hops, packets in its name may come from anywhere; fix: give it ttl-security or authentication"},
		{fmt.Sprintf(authentication, secret), 0o644, 0, "warn bfd neighbor 10.0.0.2: everybody on this host can read its key in " + secret + "; fix: chmod o= " + secret},
		{fmt.Sprintf(authentication, "/nowhere"), 0o600, 1, "FAIL bfd neighbor 10.0.0.2: authentication: password-file: open /nowhere: no such file or directory; " +
			"fix: put the key on the first line of a file that root can read"},
	} {
		if err := os.Chmod(secret, test.mode); err != nil {
			t.Fatal(err)
		}
		bfd(test.neighbor)
		code, out, _ := h.doctor()
		if code != test.code {
			t.Errorf("with a neighbor {%s} the exit status is %d, want %d:\n%s", test.neighbor, code, test.code, out)
		}
		wantLines(t, out, test.says)
	}
	for _, fine := range []string{"multihop: true, ttl-security: 2", "multihop: true, " + fmt.Sprintf(authentication, secret), "interval: 50ms"} {
		bfd(fine)
		if code, out, _ := h.doctor(); code != 0 || len(findings(out, "bfd")) > 0 {
			t.Errorf("with a neighbor {%s} the exit status is %d:\n%s", fine, code, out)
		}
	}
	bfd("interval: 50ms")
	conn, err := h.ListenPacket("udp", ":3784")
	if err != nil {
		t.Fatal(err)
	}
	code, out, _ := h.doctor()
	if code != 1 {
		t.Errorf("with another BFD daemon the exit status is %d", code)
	}
	name, err := os.ReadFile("/proc/self/comm")
	if err != nil {
		t.Fatal(err)
	}
	wantLines(t, out, fmt.Sprintf("FAIL bfd UDP port 3784 is held by %.*s (process %d); fix: end it, or keep its BFD off: a host has one BFD daemon for an address", len(name)-1, name, os.Getpid()))
	conn.Close()
	if code, out, _ := h.doctor(); code != 0 || len(findings(out, "bfd")) > 0 {
		t.Errorf("without it, the exit status is %d:\n%s", code, out)
	}
}

// findings are the lines of one check.
func findings(out, check string) (lines []string) {
	for line := range strings.Lines(out) {
		if fields := strings.Fields(line); len(fields) > 1 && fields[1] == check {
			lines = append(lines, line)
		}
	}
	return lines
}
