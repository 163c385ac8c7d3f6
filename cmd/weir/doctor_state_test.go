package main

import (
	"net/netip"
	"strings"
	"testing"

	"weir.io/weir/internal/doctor"
	"weir.io/weir/internal/model"
	"weir.io/weir/lab/etcdlab"
)

// TestDoctorAsksWhereAgentsReport: doctor finds agents by their file: one that can report, one
// without its password, and one whose etcd does not answer.
func TestDoctorAsksWhereAgentsReport(t *testing.T) {
	if got := examineReports(model.AgentStore{}, nil); got != nil {
		t.Errorf("of an agent that does not report doctor says %v", got)
	}
	c := etcdlab.New(t, etcdlab.Options{Members: 1})
	etcd := model.Etcd{Endpoints: c.Endpoints, Prefix: c.Prefix}
	backends := []netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("2001:db8::1")}
	for _, test := range []struct {
		backends []netip.Addr
		password string // is in this file
		level    doctor.Level
		text     string
	}{
		{backends, "", doctor.OK, c.Prefix + ": takes reports about 2 backends of this host"},
		{nil, "", doctor.OK, c.Prefix + ": no backend of this host is of mode gue: there is nothing to report"},
		{backends, "/nowhere/password", doctor.Fail, "read the password for etcd"},
	} {
		etcd.PasswordFile = test.password
		found := examineReports(model.AgentStore{Etcd: etcd}, test.backends)
		if len(found) != 1 || found[0].Level != test.level || found[0].Check != "etcd" || !strings.Contains(found[0].Text, test.text) {
			t.Errorf("%v, password in %q: doctor says %+v, want %s %s", test.backends, test.password, found, test.level, test.text)
		}
	}
	h := newHost(t)
	h.configure("agent: {interfaces: [eth0], store: {etcd: {endpoints: [\"http://10.0.0.1:1\"]}}}", "web")
	if code, out, _ := h.doctor("--role", "agent"); code != 1 || !strings.Contains(out, "FAIL  etcd") {
		t.Errorf("where etcd does not answer the exit status is %d, and doctor says\n%s", code, out)
	}
}
