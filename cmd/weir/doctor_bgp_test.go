package main

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// Doctor finds what this host lacks for a session: a route to the neighbor, and its password.
func TestDoctorLooksAtNeighbors(t *testing.T) {
	h := newHost(t)
	secret := filepath.Join(filepath.Dir(h.file), "password")
	if err := os.WriteFile(secret, []byte("secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	bgp := func(neighbor string) { // every neighbor is in AS 65000
		h.configure(fmt.Sprintf("%s\nbgp: {asn: 65001, router-id: 10.0.0.1, neighbors: [{asn: 65000, %s}]}", onEth0, neighbor), "web")
	}
	for _, test := range []struct {
		neighbor string
		mode     os.FileMode // of the password's file
		code     int
		says     string
	}{
		{"address: 10.0.0.2", 0o600, 0, "ok bgp neighbor 10.0.0.2, AS 65000, from 10.0.0.1"},
		{"address: 10.0.0.2, source: 10.0.0.1, password-file: " + secret, 0o600, 0, "ok bgp neighbor 10.0.0.2, AS 65000, from 10.0.0.1"},
		{"address: 10.0.0.2, password-file: " + secret, 0o644, 0,
			"warn bgp neighbor 10.0.0.2: everybody on this host can read its password in " + secret + "; fix: chmod o= " + secret},
		{"address: 10.9.0.2", 0o600, 1, "FAIL bgp neighbor 10.9.0.2: dial udp 10.9.0.2:179: connect: network is unreachable; " +
			"fix: add a route, or see that bgp.neighbors has the right address and source"},
		{"address: 10.0.0.2, source: 10.0.0.9", 0o600, 1, "FAIL bgp neighbor 10.0.0.2: dial udp 10.0.0.9:0->10.0.0.2:179: bind: cannot assign requested address; " +
			"fix: add a route, or see that bgp.neighbors has the right address and source"},
		{"address: 10.0.0.2, password-file: /nowhere/password", 0o600, 1, "FAIL bgp neighbor 10.0.0.2: password-file: open /nowhere/password: no such file or directory; " +
			"fix: put the password on the first line of a file that root can read"},
		{"interface: eth0", 0o600, 0, "ok bgp neighbor eth0, AS 65000, whatever router advertises itself there"},
		{"interface: eth7", 0o600, 1, "FAIL bgp neighbor eth7: there is no interface eth7; " +
			"fix: see that the interface is there and up, with IPv6 (net.ipv6.conf.eth7.disable_ipv6=0)"},
		{"address: \"fe80::1%eth7\"", 0o600, 1, "FAIL bgp neighbor fe80::1%eth7: there is no interface eth7; " +
			"fix: see that the interface is there and up, with IPv6 (net.ipv6.conf.eth7.disable_ipv6=0)"},
	} {
		if err := os.Chmod(secret, test.mode); err != nil {
			t.Fatal(err)
		}
		bgp(test.neighbor)
		code, out, _ := h.doctor()
		if code != test.code {
			t.Errorf("with a neighbor {%s} the exit status is %d, want %d:\n%s", test.neighbor, code, test.code, out)
		}
		wantLines(t, out, test.says)
	}
}
