package main

import "testing"

// Doctor finds what keeps a director from answering for VIPs, and what else would answer.
func TestDoctorLooksAtLinks(t *testing.T) {
	h := newHost(t)
	for _, test := range []struct {
		head, does string
		code       int
		says       string
	}{
		{head: "director: {interfaces: [eth0], neighbor: {interfaces: [{name: eth0}]}}",
			says: "ok neighbor VIPs in 10.0.0.0/24 are answered for on eth0"},
		{head: "director: {interfaces: [eth0, eth7], neighbor: {interfaces: [{name: eth0, prefixes: [203.0.113.0/24]}, {name: eth7}]}}", code: 1,
			says: "FAIL neighbor no VIP is answered for on eth7: there is no such interface"},
		{head: `director: {interfaces: [eth0], group: [10.0.0.7, 10.0.0.8], store: {etcd: {endpoints: ["http://10.0.0.9:2379"]}}, neighbor: {interfaces: [{name: eth0}]}}`, code: 1,
			says: "FAIL neighbor none of the addresses in director.group is this host's, so it answers for nothing; fix: put this host's address in director.group"},
		{head: "director: {interfaces: [eth0], neighbor: {interfaces: [{name: eth0}]}}", does: "203.0.113.1/32", code: 1,
			says: "FAIL neighbor 203.0.113.1 is an address of eth0: the kernel answers for it also when another director owns it; fix: ip addr del 203.0.113.1/32 dev eth0"},
	} {
		if test.does != "" {
			h.Address("eth0", test.does)
		}
		h.configure(test.head, "web")
		code, out, _ := h.doctor()
		if code != test.code {
			t.Errorf("with %s the exit status is %d, want %d:\n%s", test.head, code, test.code, out)
		}
		wantLines(t, out, test.says)
	}
}
