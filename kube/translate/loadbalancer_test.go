package translate_test

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"weir.io/weir/internal/model"
	"weir.io/weir/kube/translate"
	"weir.io/weir/kube/v1alpha1"
)

func loadBalancer(t *testing.T, spec string) *translate.LoadBalancer {
	t.Helper()
	b, err := translate.ReadLoadBalancer(&v1alpha1.LoadBalancer{ObjectMeta: metav1.ObjectMeta{Namespace: "red", Name: "web"}, Spec: *fromJSON[v1alpha1.LoadBalancerSpec](t, spec)})
	if err != nil {
		t.Fatalf("%s: %v", spec, err)
	}
	return b
}

func groupWith(t *testing.T, spec string) *translate.DirectorGroup {
	t.Helper()
	g, err := translate.ReadDirectorGroup(&v1alpha1.DirectorGroup{ObjectMeta: metav1.ObjectMeta{Name: "edge"}, Spec: *fromJSON[v1alpha1.DirectorGroupSpec](t, spec)}, translate.Options{Mode: model.NAT, SNAT: true})
	if err != nil {
		t.Fatalf("%s: %v", spec, err)
	}
	return g
}

// A LoadBalancer reaches directors in full, and what a director would refuse is refused with its
// place.
func TestLoadBalancerServices(t *testing.T) {
	vips := []netip.Addr{netip.MustParseAddr("10.0.0.100"), netip.MustParseAddr("2001:db8::1")}
	for spec, want := range map[string]string{
		`{"segment": "vlan:7", "listeners": [{"name": "http", "protocol": "tcp", "ports": "80", "mode": "l2dsr", "policy": "least-conn", "drain": "5m", "minHealthy": 0, "sourceRanges": ["10.0.0.0/8", "2001:db8::/32"], "health": {"kind": "tcp"},
			"members": [{"name": "a", "address": "10.0.0.11", "port": 80, "weight": 0, "mac": "02:00:00:00:00:01", "state": "draining", "check": {"port": 81}}]}]}`: `{"name":"loadbalancer/red/web/http/10.0.0.100","segment":"vlan:7","vip":"10.0.0.100","protocol":"tcp","port":"80","source-ranges":["10.0.0.0/8"],"mode":"l2dsr","policy":"least-conn","drain":"5m0s","max-drain":"24h0m0s","min-healthy":0,"health":{"kind":"tcp","interval":"1s","jitter":"100ms","timeout":"1s","rise":2,"fall":3,"panic":20},"backends":[{"name":"a","address":"10.0.0.11","weight":0,"state":"draining","mac":"02:00:00:00:00:01","check":{"port":81}}]}` +
			` loadbalancer/red/web/http/2001:db8::1`,
		`{"members": [{"name": "a", "address": "10.0.0.11", "port": 8080, "segment": "vxlan:5001", "mac": "02:00:00:00:00:01", "vtep": "10.1.0.1", "vni": 7}], "listeners": [{"name": "a", "protocol": "tcp", "ports": "80", "sourceRanges": ["10.0.0.0/8"]}, {"name": "b", "protocol": "udp", "ports": "53", "adminState": "down"}]}`: `{"name":"loadbalancer/red/web/a/10.0.0.100","vip":"10.0.0.100","protocol":"tcp","port":"80","source-ranges":["10.0.0.0/8"],"mode":"nat","snat":true,"drain":"1m0s","max-drain":"24h0m0s","backends":[{"name":"a","address":"10.0.0.11","port":8080,"weight":100,"state":"active","mac":"02:00:00:00:00:01","segment":"vxlan:5001","vtep":"10.1.0.1","vni":7}]}` +
			` [spec.listeners[0].sourceRanges: has no IPv6 prefix, so nobody may reach 2001:db8::1, and it is not forwarded there]`,
		`{"listeners": [{"name": "a", "protocol": "tcp", "ports": "80", "mode": "l2dsr", "members": [{"name": "a", "address": "10.0.0.11"}, {"name": "b", "address": "10.0.0.12", "tier": 1}]}]}`:                              `{"name":"loadbalancer/red/web/a/10.0.0.100","vip":"10.0.0.100","protocol":"tcp","port":"80","mode":"l2dsr","drain":"1m0s","max-drain":"24h0m0s","backends":[{"name":"a","address":"10.0.0.11","weight":100,"state":"active"},{"name":"b","address":"10.0.0.12","weight":100,"tier":1,"state":"active"}]}`,
		`{"listeners": [{"name": "a", "protocol": "tcp", "ports": "80", "mode": "l2dsr", "members": [{"name": "a", "address": "10.0.0.11", "tier": 1}]}]}`:                                                                     ` [spec.listeners[0].members[0].tier: 1 comes after tier 0, and no backend of the `,
		`{"adminState": "down", "listeners": [{"name": "a", "protocol": "tcp", "ports": "80"}]}`:                                                                                                                               ``,
		`{"listeners": [{"name": "a", "protocol": "tcp", "ports": "80", "mode": "l2dsr"}, {"name": "b", "protocol": "tcp", "ports": "all", "mode": "l2dsr"}], "members": [{"name": "a", "address": "10.0.0.11", "port": 80}]}`: ` [spec.members[0].port: 80 is for mode nat, or with host: l2dsr leaves the port as it is, all]`,
		`{"listeners": [{"name": "a", "protocol": "tcp", "ports": "80", "mode": "l2dsr", "members": [{"name": "a", "address": "10.0.0.11"}, {"name": "b", "address": "10.0.0.11"}]}]}`:                                         ` [spec.listeners[0].members[1].address: 10.0.0.11 is already backend "a" of this service; give one backend a larger weight instead]`,
		`{"listeners": [{"name": "a", "protocol": "tcp", "ports": "80", "mode": "l2dsr"}, {"name": "b", "protocol": "tcp", "ports": "80", "mode": "l2dsr"}]}`:                                                                  ` [spec.listeners[1].ports: 10.0.0.100 tcp port 80 already belongs to service "loadbalancer/red/web/a/10.0.0.100"`,
		`{"listeners": [{"name": "a", "protocol": "tcp", "ports": "80", "mode": "gue", "policy": "p2c", "members": [{"name": "a", "address": "10.0.0.11", "vni": 7}]}]}`:                                                       ` [spec.listeners[0].policy: p2c places a connection on any member, and in mode gue directors do not remember on which: it is forwarded with maglev spec.listeners[0].members[0].vni: is only for a backend in VXLAN or Geneve`,
		`{"listeners": [{"name": "a", "protocol": "tcp", "ports": "80", "health": {"kind": "tls", "tls": {"name": "x", "ca": "none"}}}]}`:                                                                                      ` [spec.listeners[0].health.tls.ca: `,
		`{"listeners": [{"name": "a", "protocol": "tcp", "ports": "80", "mode": "l2dsr", "members": [{"name": "a", "address": "10.0.0.11", "vtep": "10.0.0.1", "mac": "02:00:00:00:00:01"}]}]}`:                                ` [spec.listeners[0].members[0].vtep: is only for a backend in VXLAN or Geneve`,
	} {
		b := loadBalancer(t, spec)
		services, problems := b.Services(groupWith(t, `{"interfaces": ["eth0"]}`).Options, vips)
		got := ""
		for i := range services {
			if i > 0 {
				got += " " + services[i].Name
				continue
			}
			text, err := json.Marshal((*model.StoredService)(&services[i]))
			if err != nil {
				t.Fatal(err)
			}
			got = string(text)
		}
		if len(problems) > 0 {
			var texts []string
			for _, p := range problems {
				texts = append(texts, p.Message)
			}
			got += fmt.Sprint(" ", texts)
		}
		if !strings.HasPrefix(got, want) || want == "" && got != "" {
			t.Errorf("%s becomes\n%s\nwant\n%s", spec, got, want)
		}
	}
}

// A group says which namespaces may use which segments and addresses: nobody may unless it says so,
// not by a member either, and no member may be in another network by its VNI.
func TestDirectorGroupRefuses(t *testing.T) {
	g := groupWith(t, `{"interfaces": ["eth0"], "vtep": {"peers": ["10.1.0.0/24"]}, "segments": [{"id": "vlan:7", "namespaces": ["red"], "addresses": ["10.0.0.0/24"], "directors": [{"node": "a", "addresses": ["10.0.0.2"]}]}, {"id": "vlan:8", "namespaces": ["blue"]},
		{"id": "vlan:9"}, {"id": "vxlan:5001", "namespaceSelector": {"matchLabels": {"tenant": "red"}}}, {"id": "vxlan:5002", "vni": 77, "namespaces": ["red"]}], "members": [{"addresses": ["10.0.0.0/24"], "namespaces": ["red"]}]}`)
	const one = `"listeners": [{"name": "a", "protocol": "tcp", "ports": "80", "mode": "l2dsr", "members": [{"name": "a", "address": "10.0.0.11"%s}]}]}`
	for spec, want := range map[string]string{
		`{` + fmt.Sprintf(one, ""): "[]",
		`{"segment": "vlan:7", "addresses": ["10.0.0.1"], ` + fmt.Sprintf(one, ""):                                                                                     "[]",
		`{"segment": "vlan:7", "addresses": ["10.0.0.1", "10.0.1.1"], ` + fmt.Sprintf(one, ""):                                                                         "[{NotAllowed spec.addresses[1]: 10.0.1.1 is in none of the prefixes",
		`{"segment": "vlan:8", "addresses": ["10.0.0.1"], ` + fmt.Sprintf(one, ""):                                                                                     "[{NotAllowed spec.segment: DirectorGroup edge does not let namespace red use segment vlan:8}]",
		`{"segment": "vlan:9", "addresses": ["10.0.0.1"], ` + fmt.Sprintf(one, ""):                                                                                     "[{NotAllowed spec.segment: DirectorGroup edge does not let namespace red use segment vlan:9}]",
		`{"segment": "vlan:10", "addresses": ["10.0.0.1"], ` + fmt.Sprintf(one, ""):                                                                                    "[{NotAllowed spec.segment: ",
		`{` + fmt.Sprintf(one, `, "vlan": 8`):                                                                                                                          "[{NotAllowed spec.listeners[0].members[0].vlan: DirectorGroup edge does not let namespace red use segment vlan:8}]",
		`{` + fmt.Sprintf(one, `, "segment": "vlan:8"`):                                                                                                                "[{NotAllowed spec.listeners[0].members[0].segment: DirectorGroup edge does not let namespace red use segment vlan:8}]",
		`{"segment": "vlan:7", "addresses": ["10.0.0.1"], ` + fmt.Sprintf(one, `, "vlan": 8`):                                                                          "[{NotAllowed spec.listeners[0].members[0].vlan: ",
		`{"segment": "vlan:7", "addresses": ["10.0.0.1"], ` + fmt.Sprintf(one, `, "segment": "vlan:7"`):                                                                "[]",
		`{"segment": "vlan:7", "addresses": ["10.0.0.1"], ` + fmt.Sprintf(one, `, "segment": "none"`):                                                                  "[]",
		`{` + fmt.Sprintf(one, `, "segment": "vxlan:5001", "vtep": "10.1.0.1", "mac": "02:00:00:00:00:01"`):                                                            "[]",
		`{` + fmt.Sprintf(one, `, "segment": "vxlan:5001", "vtep": "10.1.0.1", "mac": "02:00:00:00:00:01", "vni": 5001`):                                               "[]",
		`{` + fmt.Sprintf(one, `, "segment": "vxlan:5001", "vtep": "10.1.0.1", "mac": "02:00:00:00:00:01", "vni": 5003`):                                               "[{NotAllowed spec.listeners[0].members[0].vni: 5003 is another network than segment vxlan:5001",
		`{` + fmt.Sprintf(one, `, "segment": "vxlan:5002", "vtep": "10.1.0.1", "mac": "02:00:00:00:00:01", "vni": 5002`):                                               "[{NotAllowed spec.listeners[0].members[0].vni: 5002 is another network",
		`{"segment": "vxlan:5001", "addresses": ["10.0.0.1"], ` + fmt.Sprintf(one, `, "vtep": "10.1.0.1", "mac": "02:00:00:00:00:01", "vni": 9`):                       "[{NotAllowed spec.listeners[0].members[0].vni: 9 is another network",
		`{"segment": "vxlan:5002", "addresses": ["10.0.0.1"], ` + fmt.Sprintf(one, `, "vtep": "10.1.0.1", "mac": "02:00:00:00:00:01", "vni": 77`):                      "[]",
		`{"listeners": [{"name": "a", "protocol": "tcp", "ports": "80", "mode": "gue", "members": [{"name": "a", "address": "10.0.0.11", "segment": "vxlan:5001"}]}]}`: "[{NoGroup spec.listeners[0].members[0].segment: gue needs an address of each director in vxlan:5001",
		`{"listeners": [{"name": "a", "protocol": "tcp", "ports": "80", "mode": "gue", "members": [{"name": "a", "address": "10.0.0.11", "segment": "vlan:7"}]}]}`:     "[]",
	} {
		if got := fmt.Sprint(g.Refuses(loadBalancer(t, spec), map[string]string{"tenant": "red"})); !strings.HasPrefix(got, strings.TrimSuffix(want, "]")) || want == "[]" && got != "[]" {
			t.Errorf("of %s is refused %s, want %s", spec, got, want)
		}
	}
}

// Outside of segments a director reaches whatever the hosts' routes lead to: members there are those that the group
// lets their namespace have, also where only tunnels to them leave the network of the VIP.
func TestDirectorGroupRefusesMembers(t *testing.T) {
	const segments = `"vtep": {"peers": ["10.1.0.0/24"]}, "segments": [{"id": "vlan:7", "namespaces": ["red"], "directors": [{"node": "a", "addresses": ["10.0.0.2"]}]}, {"id": "vxlan:5001", "namespaces": ["red"]}]`
	with := func(members string) *translate.DirectorGroup {
		return groupWith(t, `{"interfaces": ["eth0"], `+segments+members+`}`)
	}
	group := with(`, "members": [{"addresses": ["10.9.0.0/24", "2001:db8:9::/64"], "namespaces": ["red"]}, {"addresses": ["10.9.1.0/24"], "namespaceSelector": {"matchLabels": {"tenant": "red"}}},
		{"addresses": ["10.9.2.0/24"], "namespaces": ["blue"]}, {"addresses": ["10.9.3.0/24"]}]`)
	const none, vlan = `{"listeners": [{"name": "a", "protocol": "tcp", "ports": "80", "mode": "%s"}], "members": [{"name": "a", %s}]}`, `{"segment": "vlan:7", "addresses": ["10.0.0.1"], "listeners": [{"name": "a", "protocol": "tcp", "ports": "80", "mode": "%s"}], "members": [{"name": "a", %s}]}`
	refused := func(field, address string) string {
		return fmt.Sprintf("{NotAllowed spec.members[0].%s: DirectorGroup edge does not let namespace red have members at %s outside of segments: its spec.members says which it may have}", field, address)
	}
	for _, c := range []struct {
		spec, mode, member string
		want               []string
	}{
		{none, "nat", `"address": "10.9.0.1"`, nil},
		{none, "nat", `"address": "2001:db8:9::1"`, nil},
		{none, "l2dsr", `"address": "10.9.1.1", "mac": "02:00:00:00:00:01"`, nil},
		{none, "gue", `"address": "10.9.0.1", "host": "10.9.1.1"`, nil},
		{none, "nat", `"address": "10.9.0.1", "check": {"address": "10.9.1.1", "port": 81}`, nil},
		{none, "nat", `"address": "10.9.0.1", "check": {"address": "10.96.0.1"}`, []string{refused("check.address", "10.96.0.1")}},
		{none, "nat", `"address": "10.96.0.1"`, []string{refused("address", "10.96.0.1")}},
		{none, "nat", `"address": "10.9.2.1"`, []string{refused("address", "10.9.2.1")}},
		{none, "nat", `"address": "10.9.3.1"`, []string{refused("address", "10.9.3.1")}},
		{none, "l2dsr", `"address": "10.96.0.1", "mac": "02:00:00:00:00:01"`, []string{refused("address", "10.96.0.1")}},
		{none, "gue", `"address": "10.244.0.1", "host": "10.9.0.1"`, []string{refused("address", "10.244.0.1")}},
		{none, "gue", `"address": "10.9.0.1", "host": "10.1.0.1"`, []string{refused("host", "10.1.0.1")}},
		{none, "gue", `"address": "10.244.0.1", "host": "10.1.0.1"`, []string{refused("address", "10.244.0.1"), refused("host", "10.1.0.1")}},
		{none, "nat", `"address": "10.96.0.1", "vlan": 7`, []string{refused("address", "10.96.0.1")}}, // probes leave without the tag
		{none, "nat", `"address": "10.9.0.1", "vlan": 7`, nil},
		{none, "nat", `"address": "10.96.0.1", "segment": "vlan:7"`, nil},
		{vlan, "nat", `"address": "10.96.0.1", "segment": "none"`, []string{refused("address", "10.96.0.1")}},
		{vlan, "nat", `"address": "10.9.0.1", "segment": "none"`, nil},
		{vlan, "gue", `"address": "10.96.0.1"`, []string{refused("address", "10.96.0.1")}},
		{vlan, "ipip", `"address": "10.96.0.1"`, []string{refused("address", "10.96.0.1")}},
		{vlan, "ipip", `"address": "10.9.0.1"`, nil},
		{vlan, "gue", `"address": "10.96.0.1", "segment": "vlan:7"`, nil},
		{vlan, "nat", `"address": "10.96.0.1"`, nil},
		{vlan, "l2dsr", `"address": "10.96.0.1"`, nil},
	} {
		spec := fmt.Sprintf(c.spec, c.mode, c.member)
		if got, want := fmt.Sprint(group.Refuses(loadBalancer(t, spec), map[string]string{"tenant": "red"})), "["+strings.Join(c.want, " ")+"]"; got != want {
			t.Errorf("of %s is refused\n%s\nwant\n%s", spec, got, want)
		}
	}
	for name, spec := range map[string]string{"nothing": "", "other namespaces": `, "members": [{"addresses": ["0.0.0.0/0"], "namespaces": ["blue"]}]`} {
		if got := fmt.Sprint(with(spec).Refuses(loadBalancer(t, fmt.Sprintf(none, "nat", `"address": "10.9.0.1"`)), nil)); got != "["+refused("address", "10.9.0.1")+"]" {
			t.Errorf("by a group with %s in members is refused %s", name, got)
		}
	}
}

// A member's VTEP becomes one that packets are taken from in all networks without peers: it may only be where the
// group's administrator trusts VTEPs so far.
func TestDirectorGroupRefusesVTEPs(t *testing.T) {
	const red, blue = `{"id": "vxlan:5001", "namespaces": ["red"]%s}`, `{"id": "geneve:5002"%s}`
	const own, others = `, "peers": ["10.1.1.0/24"]`, `, "peers": ["10.1.2.0/24"]`
	const member = `{"name": "a", "address": "10.0.0.11", "mac": "02:00:00:00:00:01", "vtep": "%s"%s}`
	for _, c := range []struct{ vtep, red, blue, at, want string }{
		{`{"peers": ["10.1.0.0/24"]}`, "", "", "10.1.0.1", ""},
		{`{}`, "", "", "10.1.0.1", "10.1.0.1 is in none of the peers of segment vxlan:5001 and of vtep in DirectorGroup edge"},
		{`{"peers": ["10.1.0.0/24"]}`, "", "", "10.1.1.1", "10.1.1.1 is in none of the peers"},
		{`{"peers": ["10.1.0.0/24"]}`, own, "", "10.1.0.1", ""},
		{`{}`, own, others, "10.1.1.1", ""},
		{`{}`, own, others, "10.1.2.1", "10.1.2.1 is in none of the peers"},
		{`{}`, own, "", "10.1.1.1", "10.1.1.1 is in the peers of segment vxlan:5001 alone, and segment geneve:5002 of DirectorGroup edge has no peers"},
	} {
		g := groupWith(t, fmt.Sprintf(`{"interfaces": ["eth0"], "vtep": %s, "segments": [`+red+`, `+blue+`, {"id": "vlan:7"}]}`, c.vtep, c.red, c.blue))
		for place, spec := range map[string]string{
			"spec.members[0].vtep":              `{"segment": "vxlan:5001", "addresses": ["10.0.0.1"], "members": [` + fmt.Sprintf(member, c.at, "") + `], "listeners": [{"name": "a", "protocol": "tcp", "ports": "80", "mode": "l2dsr"}]}`,
			"spec.listeners[0].members[0].vtep": `{"listeners": [{"name": "a", "protocol": "tcp", "ports": "80", "mode": "l2dsr", "members": [` + fmt.Sprintf(member, c.at, `, "segment": "vxlan:5001"`) + `]}]}`,
		} {
			got, want := fmt.Sprint(g.Refuses(loadBalancer(t, spec), nil)), "[{NotAllowed "+place+": "+c.want
			if c.want == "" {
				want = "[]"
			}
			if !strings.HasPrefix(got, want) {
				t.Errorf("with %+v of %s is refused %s, want %s", c, spec, got, want)
			}
		}
	}
}

// Without snat a member in VXLAN or Geneve could open connections into the network of the addresses, if that is
// another one.
func TestDirectorGroupRefusesNATWithoutSNAT(t *testing.T) {
	const in = `"segment": "%s", "addresses": ["10.0.0.1"], `
	for _, group := range []bool{false, true} {
		g := groupWith(t, fmt.Sprintf(`{"interfaces": ["eth0"], "snat": %v, "vtep": {}, "segments": [{"id": "vlan:7", "namespaces": ["red"]}, {"id": "vlan:8", "namespaces": ["red"]}, {"id": "vxlan:5001", "namespaces": ["red"]}, {"id": "geneve:5002", "namespaces": ["red"]}]}`, group))
		for _, c := range []struct{ of, member, mode, from, to string }{
			{"", "vxlan:5001", "nat", "vxlan:5001", "none"},
			{fmt.Sprintf(in, "vlan:7"), "geneve:5002", "nat", "geneve:5002", "vlan:7"},
			{fmt.Sprintf(in, "geneve:5002"), "vxlan:5001", "nat", "vxlan:5001", "geneve:5002"},
			{fmt.Sprintf(in, "vxlan:5001"), "vxlan:5001", "nat", "", ""},
			{fmt.Sprintf(in, "vlan:7"), "vlan:8", "nat", "", ""},
			{fmt.Sprintf(in, "vlan:7"), "vxlan:5001", "l2dsr", "", ""},
		} {
			for _, snat := range []string{"", `"snat": false, `, `"snat": true, `} {
				spec := fmt.Sprintf(`{%s"members": [{"name": "a", "address": "10.0.0.11", "segment": %q}], "listeners": [{%s"mode": %q, "name": "a", "protocol": "tcp", "ports": "80"}]}`, c.of, c.member, snat, c.mode)
				want := "[]"
				if c.from != "" && (strings.Contains(snat, "false") || snat == "" && !group) {
					want = fmt.Sprintf("[{NotAllowed spec.listeners[0].snat: without snat a member in segment %s (spec.members[0]) could open connections into segment %s, where the addresses are: give snat: true}]", c.from, c.to)
				}
				if got := fmt.Sprint(g.Refuses(loadBalancer(t, spec), nil)); got != want {
					t.Errorf("with snat: %v in the group of %s is refused %s, want %s", group, spec, got, want)
				}
			}
		}
	}
}

// What a group says of segments and members that no schema can refuse is refused with its place.
func TestReadSegments(t *testing.T) {
	for spec, want := range map[string]string{
		`{"interfaces": ["eth0"], "segments": [{"id": "vlan:7", "interface": "a b"}]}`:                                                                                "spec.segments[0].interface: ",
		`{"interfaces": ["eth0"], "vtep": {"vxlanPort": 6081}}`:                                                                                                       "spec.vtep.geneve-port: ",
		`{"interfaces": ["eth0"], "vtep": {}, "segments": [{"id": "vxlan:7", "vni": 8}, {"id": "vxlan:8"}]}`:                                                          "spec.segments[1].vni: ",
		`{"interfaces": ["eth0"], "vtep": {}, "segments": [{"id": "vxlan:7", "hosts": [{"address": "10.0.0.1", "mac": "x", "vtep": "10.1.0.1"}]}]}`:                   "spec.segments[0].hosts[0].mac: ",
		`{"interfaces": ["eth0"], "segments": [{"id": "vlan:7", "namespaceSelector": {"matchExpressions": [{"key": "a", "operator": "Is"}]}}]}`:                       "spec.segments[0].namespaceSelector: ",
		`{"interfaces": ["eth0"], "limits": {"flows": 1024}, "segmentLimits": {"flows": 1025}}`:                                                                       "spec.segmentLimits.flows: 1025 is more than",
		`{"interfaces": ["eth0"], "limits": {"flows": 1024}, "segments": [{"id": "vlan:7", "limits": {"flows": 1024}}, {"id": "vlan:8", "limits": {"flows": 1025}}]}`: "spec.segments[1].limits.flows: 1025 is more than",
		`{"interfaces": ["eth0"], "members": [{"addresses": ["10.0.0.0/24"]}, {"addresses": ["10.0.0.0/24", "x"]}]}`:                                                  "spec.members[1].addresses[1]: ",
		`{"interfaces": ["eth0"], "members": [{"addresses": ["10.0.0.0/24"], "namespaceSelector": {"matchExpressions": [{"key": "a", "operator": "Is"}]}}]}`:          "spec.members[0].namespaceSelector: ",
		`{"interfaces": ["eth0"], "vtep": {}, "segments": [{"id": "vxlan:7", "gateway": ["10.0.0.1", "10.0.0.2"]}]}`:                                                  "spec.segments[0].gateway[1]: ",
	} {
		_, err := translate.ReadDirectorGroup(&v1alpha1.DirectorGroup{Spec: *fromJSON[v1alpha1.DirectorGroupSpec](t, spec)}, translate.Options{Mode: model.NAT})
		if err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s is read with error %v, want %s", spec, err, want)
		}
	}
}
