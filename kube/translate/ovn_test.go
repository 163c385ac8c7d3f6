package translate_test

import (
	"fmt"
	"strings"
	"testing"

	"weir.io/weir/internal/model"
	"weir.io/weir/kube/translate"
	"weir.io/weir/kube/v1alpha1"
)

// Each director has a name of its own among OVN's hosts, and with ssl: a Secret, its own or that of all.
func TestOVNOf(t *testing.T) {
	const directors = `, "leaderOnly": true, "directors": [{"node": "a", "chassis": "lb1"}, {"node": "b", "certificateSecret": "of-b"}]`
	for _, c := range []struct{ ovn, node, want string }{
		{`"endpoints": ["tcp:10.0.0.1:6642"]`, "a", "{[tcp:10.0.0.1:6642]    weir-a false} false "},
		{`"endpoints": ["tcp:10.0.0.1:6642"]` + strings.ReplaceAll(directors, `, "certificateSecret": "of-b"`, ""), "a", "{[tcp:10.0.0.1:6642]    lb1 true} false "},
		{`"endpoints": ["tcp:10.0.0.1:6642", "ssl:ovn.example:6642"], "certificateSecret": "of-all"` + directors, "a", "{[tcp:10.0.0.1:6642 ssl:ovn.example:6642]    lb1 true} true of-all"},
		{`"endpoints": ["ssl:[2001:db8::1]:6642"], "certificateSecret": "of-all"` + directors, "b", "{[ssl:[2001:db8::1]:6642]    weir-b true} true of-b"},
		{`"endpoints": ["ssl:10.0.0.1:6642"], "directors": [{"node": "b", "certificateSecret": "of-b"}]`, "c", "{[ssl:10.0.0.1:6642]    weir-c false} true "},
	} {
		g := groupWith(t, `{"interfaces": ["eth0"], "vtep": {}, "ovn": {`+c.ovn+`}, "segments": [{"id": "geneve:5001", "network": "tenant"}]}`)
		o := translate.OVNOf(g.Of, c.node)
		if got := fmt.Sprint(o.OVN, o.Secure, " ", o.Secret); strings.Join(strings.Fields(got), " ") != strings.Join(strings.Fields(c.want), " ") {
			t.Errorf("of %s node %s knows %s, want %s", c.ovn, c.node, got, c.want)
		}
		if s := g.Segment(model.Segment{Kind: model.SegmentGeneve, ID: 5001}); s == nil || s.Settings.Network != "tenant" {
			t.Errorf("the segment is %+v", s)
		}
	}
	if o := translate.OVNOf(&v1alpha1.DirectorGroup{}, "a"); o.Given() || o.Secure {
		t.Errorf("a group without OVN has %+v", o)
	}
}

// What a group says of OVN that no schema can refuse, or an older one did not, is refused with its place.
func TestReadOVN(t *testing.T) {
	const with = `{"interfaces": ["eth0"], "vtep": {}, "ovn": {%s}, "segments": [%s]}`
	const tcp = `"endpoints": ["tcp:10.0.0.1:6642"]`
	for spec, want := range map[string]string{
		`{"interfaces": ["eth0"], "ovn": {` + tcp + `}}`:                                                                                   "spec.ovn: needs vtep, where OVN's hosts send to",
		`{"interfaces": ["eth0"], "vtep": {}, "segments": [{"id": "geneve:7", "network": "a"}]}`:                                           "spec.segments[0].network: needs ovn, which says where its hosts are",
		fmt.Sprintf(with, `"endpoints": ["unix:/run/ovn/ovnsb_db.sock"]`, ""):                                                              `spec.ovn.endpoints[0]: "unix:/run/ovn/ovnsb_db.sock" is not tcp:HOST:PORT or ssl:HOST:PORT`,
		fmt.Sprintf(with, `"endpoints": ["tcp:10.0.0.1:6642", "tcp:10.0.0.2:65536"]`, ""):                                                  `spec.ovn.endpoints[1]: "tcp:10.0.0.2:65536" is not`,
		fmt.Sprintf(with, tcp+`, "directors": [{"node": "a", "chassis": "x"}, {"node": "b", "chassis": "x"}]`, ""):                         `spec.ovn.directors[1].chassis: "x" is already that of node a`,
		fmt.Sprintf(with, tcp+`, "directors": [{"node": "a"}, {"node": "b", "chassis": "weir-a"}]`, ""):                                    `spec.ovn.directors[1].chassis: "weir-a" is already that of node a`,
		fmt.Sprintf(with, `"endpoints": ["ssl:10.0.0.1:6642"], "directors": [{"node": "a", "certificateSecret": "a"}, {"node": "b"}]`, ""): "spec.ovn.directors[1].certificateSecret: is required for ssl:, or spec.ovn.certificateSecret",
		fmt.Sprintf(with, tcp, `{"id": "geneve:7", "network": "a"}, {"id": "geneve:8", "network": "a"}`):                                   `spec.segments[1].network: "a" is already that of geneve:7`,
		fmt.Sprintf(with, tcp, `{"id": "geneve:7", "network": "a"}, {"id": "vxlan:8", "network": "b"}`):                                    "spec.segments[1].id: vxlan:8 is not of the kind of geneve:7",
		fmt.Sprintf(with, tcp, `{"id": "geneve:7", "network": "a b"}`):                                                                     "spec.segments[0].network: contains white space",
	} {
		_, err := translate.ReadDirectorGroup(&v1alpha1.DirectorGroup{Spec: *fromJSON[v1alpha1.DirectorGroupSpec](t, spec)}, translate.Options{Mode: model.NAT})
		if err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s is read with error %v, want %s", spec, err, want)
		}
	}
}

// OVN says which VNI a network has, so a member may not: with another VNI it would be in another tenant's network. It
// needs neither VTEP nor MAC address.
func TestMembersInNetworksOfOVN(t *testing.T) {
	g := groupWith(t, `{"interfaces": ["eth0"], "vtep": {"peers": ["10.1.0.0/24"]}, "ovn": {"endpoints": ["tcp:10.0.0.1:6642"]},
		"segments": [{"id": "geneve:5001", "network": "a", "namespaces": ["red"]}, {"id": "geneve:5002", "network": "b", "vni": 7, "namespaces": ["red"]}]}`)
	const one = `{"listeners": [{"name": "a", "protocol": "tcp", "ports": "80", "mode": "l2dsr", "members": [{"name": "a", "address": "10.0.0.11", "segment": "%s"%s}]}]}`
	const placed = `, "vtep": "10.1.0.1", "mac": "02:00:00:00:00:01"`
	for spec, want := range map[string]string{
		fmt.Sprintf(one, "geneve:5001", ""):                     "[]",
		fmt.Sprintf(one, "geneve:5001", placed):                 "[]",
		fmt.Sprintf(one, "geneve:5001", placed+`, "vni": 5001`): "[{NotAllowed spec.listeners[0].members[0].vni: OVN says which VNI segment geneve:5001 has: DirectorGroup edge gives it network a, and no vni}]",
		fmt.Sprintf(one, "geneve:5002", placed+`, "vni": 7`):    "[]",
		fmt.Sprintf(one, "geneve:5002", placed+`, "vni": 5002`): "[{NotAllowed spec.listeners[0].members[0].vni: 5002 is another network than segment geneve:5002, whose VNI in DirectorGroup edge is 7}]",
	} {
		b := loadBalancer(t, spec)
		if got := fmt.Sprint(g.Refuses(b, nil)); got != want {
			t.Errorf("of %s is refused %s, want %s", spec, got, want)
		}
		if _, problems := b.Services(g.Options, nil); len(problems) > 0 {
			t.Errorf("%s has the problems %v", spec, problems)
		}
	}
}
