package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"weir.io/weir/internal/model"
)

// What is wrong is said with its place, all of it at once, and nothing is read then.
func TestParseHosts(t *testing.T) {
	vtep := model.VTEP{Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.200")}}
	const good = "{address: 10.0.0.1, mac: '02:00:00:00:00:01', vtep: 192.0.2.1}"
	for _, test := range []struct {
		vtep       model.VTEP
		text, want string
	}{
		{vtep, "segments: []", ""},
		{vtep, "segments: [{id: 'vxlan:1', hosts: [" + good + "]}, {id: 'geneve:1', hosts: [" + good + "]}]", ""},
		{vtep, "segments: [{id: 'vxlan:1', hosts: []}]", ""},
		{vtep, "{}", "hosts: segments: is required (an empty list is [])"},
		{vtep, "hosts: []", "hosts:1: hosts: unknown key (known here: segments)"},
		{vtep, "segments:\n- {id: 'nvgre:1', hosts: []}", `hosts:2: segments[0].id: unknown segment "nvgre" (one of none, vlan:ID, vxlan:VNI, geneve:VNI)`},
		{vtep, "segments:\n- {id: 'vlan:1', hosts: []}", "hosts:2: segments[0].id: vlan:1 is not vxlan:VNI or geneve:VNI"},
		{vtep, "segments:\n- {hosts: []}", "hosts:2: segments[0].id: is required"},
		{vtep, "segments:\n- {id: 'vxlan:1', hosts: [" + good + ", " + good + "]}", "hosts:2: segments[0].hosts[1].address: 10.0.0.1 is named twice"},
		{vtep, "segments:\n- {id: 'vxlan:1', hosts: []}\n- {id: 'vxlan:1', hosts: []}", "hosts:3: segments[1].id: vxlan:1 is named twice (line 2)"},
		{vtep, "segments: [{id: 'vxlan:1', hosts: [{address: 127.0.0.1, mac: '02:00:00:00:00:01', vtep: '2001:db8::1', vni: 16777216}]}]",
			"hosts:1: segments[0].hosts[0].address: 127.0.0.1 is a loopback address, which no packet on a wire may have\n" +
				"hosts:1: segments[0].hosts[0].vtep: 2001:db8::1 is IPv6, and this director is a VTEP with no such address\n" +
				"hosts:1: segments[0].hosts[0].vni: 16777216 is larger than 16777215"},
		{vtep, "segments: [{id: 'vxlan:1', hosts: [{address: 10.0.0.1, mac: '01:00:00:00:00:01', vtep: 192.0.2.1}]}]",
			`hosts:1: segments[0].hosts[0].mac: mac "01:00:00:00:00:01" is not a unicast Ethernet address`},
		{vtep, "segments: [{id: 'vxlan:1', hosts: [{address: 10.0.0.1, mac: '02:00:00:00:00:01', vtep: 192.0.2.1, geneve-options: '0102:80:00000001'}]}]",
			"hosts:1: segments[0].hosts[0].geneve-options: is only for Geneve, and the host is in vxlan:1"},
		// What cannot be read hides nothing that does not depend on it.
		{vtep, "segments:\n- id: 'vxlan:1'\n  hosts:\n  - {address: 10.0.0.1, vtep: 192.0.2.1}\n  - {address: 10.0.0.2, mac: '02:00:00:00:00:01', vtep: '2001:db8::1'}\n  - nonsense\n  - {address: x, vtep: '2001:db8::1'}\n  - {address: 10.0.0.1, mac: 2, vtep: 192.0.2.1}\n- {id: vxlan, hosts: [{address: 10.0.0.1}]}\n- {id: 'vlan:1', hosts: []}",
			"hosts:4: segments[0].hosts[0].mac: is required\n" +
				"hosts:5: segments[0].hosts[1].vtep: 2001:db8::1 is IPv6, and this director is a VTEP with no such address\n" +
				`hosts:6: segments[0].hosts[2]: is the text "nonsense", not a mapping` + "\n" +
				`hosts:7: segments[0].hosts[3].address: "x" is not an IP address` + "\n" +
				"hosts:7: segments[0].hosts[3].mac: is required\n" +
				`hosts:8: segments[0].hosts[4].mac: mac "2" is not a unicast Ethernet address` + "\n" +
				`hosts:8: segments[0].hosts[4].address: 10.0.0.1 is named twice (line 4)` + "\n" +
				`hosts:9: segments[1].id: segment "vxlan" is not none, vlan:ID, vxlan:VNI or geneve:VNI` + "\n" +
				"hosts:10: segments[2].id: vlan:1 is not vxlan:VNI or geneve:VNI"},
		{model.VTEP{}, "segments: [{id: 'vxlan:1', hosts: []}]", "hosts:1: segments[0].id: needs director.vtep, where its tunnels end"},
	} {
		list, err := ParseHosts("hosts", []byte(test.text), &model.Config{Director: model.Director{VTEP: test.vtep}})
		said := ""
		if err != nil {
			said = err.Error()
		}
		if said != test.want || err != nil && list != nil {
			t.Errorf("%s\nsays\n%s\nwant\n%s", test.text, said, test.want)
		}
	}
}

// A host cannot be what the director itself is, nor have the MAC address of another one that is elsewhere.
func TestHostsThatCannotBe(t *testing.T) {
	c, err := Parse("weir.yaml", []byte("director: {interfaces: [eth0], vtep: {addresses: [192.0.2.200]}}\n"+
		"segments: [{id: 'vxlan:1', addresses: [10.0.0.3], mac: '02:00:00:00:00:03'}]\n"+
		"services: [{name: web, segment: 'vxlan:1', vip: 10.0.0.100, protocol: tcp, port: 80, mode: l2dsr, backends: []}]\n"))
	if err != nil {
		t.Fatal(err)
	}
	_, err = ParseHosts("hosts", []byte("segments:\n- id: vxlan:1\n  hosts:\n"+
		"  - {address: 10.0.0.3, mac: '02:00:00:00:00:01', vtep: 192.0.2.1}\n  - {address: 10.0.0.2, mac: '02:00:00:00:00:03', vtep: 192.0.2.1}\n"+
		"  - {address: 10.0.0.100, mac: '02:00:00:00:00:04', vtep: 192.0.2.1}\n  - {address: 10.0.0.5, mac: '02:00:00:00:00:04', vtep: 192.0.2.2}\n"+
		"- {id: 'vxlan:2', hosts: [{address: 10.0.0.3, mac: '02:00:00:00:00:03', vtep: 192.0.2.1}]}\n"), &c)
	const want = "hosts:4: segments[0].hosts[0].address: 10.0.0.3 is this director's own address in vxlan:1 (segments[].addresses), and no other host's\n" +
		"hosts:5: segments[0].hosts[1].mac: 02:00:00:00:00:03 is this director's own MAC address in vxlan:1, and no other host's\n" +
		"hosts:6: segments[0].hosts[2].address: 10.0.0.100 is the VIP of service \"web\" in vxlan:1, and no host's\n" +
		"hosts:7: segments[0].hosts[3].mac: 02:00:00:00:00:04 is at VTEP 192.0.2.2, and it is the MAC address of 10.0.0.100 at VTEP 192.0.2.1, too: a host is at one of them (line 6)"
	if err == nil || err.Error() != want {
		t.Errorf("it is refused with\n%v\nwant\n%s", err, want)
	}
}

// The form that clients' JSON libraries write is read although it has more marks than a tree may be made of.
func TestParseManyHosts(t *testing.T) {
	vtep := model.VTEP{Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.200")}}
	of := model.SegmentHosts{ID: model.Segment{Kind: model.SegmentVXLAN, ID: 1}}
	for i := range model.MaxSegmentHosts {
		of.Hosts = append(of.Hosts, model.SegmentHost{Address: netip.AddrFrom16([16]byte{0x20, 1, 0xd, 0xb8, 0, 1, 0, 2, 0, 3, 0, 4, byte(i >> 8), byte(i), 0, 5}),
			MAC: model.MAC{2, 0, 0, 0, byte(i >> 8), byte(i)}, VTEP: netip.MustParseAddr("192.0.2.1")})
	}
	text, err := json.Marshal(hostsText{[]model.SegmentHosts{of}})
	if err != nil {
		t.Fatal(err)
	}
	list, err := ParseHosts("hosts", text, &model.Config{Director: model.Director{VTEP: vtep}})
	if err != nil || len(list) != 1 || len(list[0].Hosts) != len(of.Hosts) || list[0].Hosts[60000] != of.Hosts[60000] {
		t.Errorf("%d hosts: %.200v", len(of.Hosts), err)
	}
	more := of
	more.Hosts = append(slices.Clone(of.Hosts), model.SegmentHost{Address: netip.MustParseAddr("10.0.0.1"), MAC: model.MAC{2}, VTEP: netip.MustParseAddr("192.0.2.1")})
	if text, err = json.Marshal(hostsText{[]model.SegmentHosts{more}}); err != nil {
		t.Fatal(err)
	}
	if _, err = ParseHosts("hosts", text, &model.Config{Director: model.Director{VTEP: vtep}}); err == nil || err.Error() != "hosts: segments: 65537 hosts in all are more than the 65536 that a director has room for" {
		t.Errorf("one host too many: %.200v", err)
	}
	of.Hosts[60000].VTEP = netip.MustParseAddr("2001:db8::1")
	if text, err = json.Marshal(hostsText{[]model.SegmentHosts{of}}); err != nil {
		t.Fatal(err)
	}
	var errs Errors
	if _, err = ParseHosts("hosts", text, &model.Config{Director: model.Director{VTEP: vtep}}); !errors.As(err, &errs) || errs[0].Path != "segments[0].hosts[60000].vtep" {
		t.Errorf("one wrong host among many: %.200v", err)
	}
	loose := strings.ReplaceAll(string(text), `,"mac"`, ` ,"mac"`)
	if _, err = ParseHosts("hosts", []byte(loose), &model.Config{Director: model.Director{VTEP: vtep}}); err == nil || !strings.Contains(err.Error(), "more than") {
		t.Errorf("another form of so many: %.200v", err)
	}
	if list, err := ParseHosts("hosts", fmt.Appendf(nil, `{"segments":[{"id":"vxlan:1","hosts":[{"address":"10.0.0.1","mac":"02:00:00:00:00:01","mac":"02:00:00:00:00:02","vtep":"192.0.2.1"}]}]}`), &model.Config{Director: model.Director{VTEP: vtep}}); err == nil {
		t.Errorf("a key that is there twice is read: %v", list)
	}
}
