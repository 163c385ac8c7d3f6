package config_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"

	"weir.io/weir/internal/config"
	"weir.io/weir/internal/model"
)

func check(t *testing.T, name, text string, roles model.Roles) config.Checked {
	t.Helper()
	checked, err := config.Check(name, strings.NewReader(text), roles)
	if err != nil {
		t.Fatal(err)
	}
	return checked
}

// A check refuses the files that a director refuses, with the same words, and no others.
func TestCheckSaysWhatLoadSays(t *testing.T) {
	files, err := filepath.Glob("testdata/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatal("no files:", err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var says config.Errors
		for _, e := range check(t, file, string(text), model.Roles{}).Errors {
			if !e.Warning {
				says = append(says, e)
			}
		}
		if _, err = config.Load(file); err == nil && len(says) > 0 || err != nil && err.Error() != says.Error() {
			t.Errorf("a check of %s says\n%v\nand a director\n%v", file, says, err)
		}
	}
}

const checkedService = "services:\n- name: web\n  vip: 203.0.113.10\n  protocol: tcp\n  port: 443\n  mode: gue\n  backends:\n  - {address: 10.0.1.11}\n"

// What a check says of a file that is valid, and for what it takes the file.
func TestCheckWarns(t *testing.T) {
	dir := t.TempDir()
	key, kept := filepath.Join(dir, "key"), filepath.Join(dir, "kept", "key")
	if err := errors.Join(os.Chmod(filepath.Dir(dir), 0o755), os.Chmod(dir, 0o755), os.WriteFile(key, nil, 0o600), os.Chmod(key, 0o644),
		os.Mkdir(filepath.Dir(kept), 0o750), os.WriteFile(kept, nil, 0o600), os.Chmod(kept, 0o644)); err != nil {
		t.Fatal(err)
	}
	director := "director: {interfaces: [eth0]}\n"
	trunks := "director: {interfaces: [eth0, eth1], neighbor: {interfaces: [{name: eth1, segment: 'vlan:100'}]}}\n"
	inVLAN := strings.NewReplacer("  vip", "  segment: vlan:100\n  vip", "gue", "l2dsr").Replace(checkedService)
	inVLANByMAC := strings.Replace(inVLAN, "10.0.1.11", "10.0.1.11, mac: '02:00:00:00:00:0b'", 1)
	inVXLAN := "director: {interfaces: [eth0], vtep: {addresses: [192.0.2.200]}}\n"
	announced := "bgp: {asn: 65001, router-id: 10.0.0.2, neighbors: [{address: 10.0.0.1, asn: 65000}]}\ndirector: {interfaces: [eth0], group: [10.0.0.2, 10.0.0.3], snat: {addresses: [192.0.2.1], announce: true}"
	draining := strings.Replace(checkedService, "10.0.1.11}", "10.0.1.11, state: draining}\n  - {address: 10.0.1.12, weight: 0}", 1)
	for name, test := range map[string]struct {
		text  string
		roles model.Roles
		is    string
		says  string
	}{
		"a director":     {director + checkedService, model.Roles{}, "director", ""},
		"an agent":       {"directors: [10.0.0.2]\n" + checkedService, model.Roles{}, "agent", ""},
		"both":           {director + "directors: [10.0.0.2]\n" + checkedService, model.Roles{}, "director and agent", ""},
		"asked as one":   {director + checkedService, model.Roles{Director: true}, "director", ""},
		"no interfaces":  {"directors: [10.0.0.2]\n" + checkedService, model.Roles{Director: true}, "director", "f:1: director.interfaces: is empty; name those that clients' packets come in by"},
		"none is active": {director + draining, model.Roles{}, "director", "f:8: warning: services[0].backends: are all draining or of weight 0: none is for new connections"},
		"replies from another network": {director + strings.NewReplacer("gue", "nat", "10.0.1.11", "10.0.1.11, segment: 'vlan:100'").Replace(checkedService), model.Roles{}, "director",
			"f:3: warning: services[0].snat: without snat, backend 10.0.1.11 can open connections from vlan:100 to the network of no segment with the VIP as their source: no director remembers which clients have asked it (line 9)"},
		"replies from another network, of full NAT": {"director: {interfaces: [eth0], snat: {addresses: [192.0.2.1]}}\n" + strings.NewReplacer("gue", "nat\n  snat: true", "10.0.1.11", "10.0.1.11, segment: 'vlan:100'").Replace(checkedService), model.Roles{}, "director", ""},
		"no directors": {checkedService, model.Roles{}, "agent",
			"f:8: warning: services[0].backends[0].address: directors has no address of the family of 10.0.1.11, so its agent would drop what comes there by gue"},
		"a former name": {director + strings.Replace(checkedService, "  backends", "  drain: 5m\n  backends", 1), model.Roles{}, "director",
			"f:8: warning: services[0].drain: is called retention now; the former name is still read"},
		"a key for all": {director + "loads: {to: [10.0.0.2], key-file: " + key + "}\n" + checkedService, model.Roles{}, "director",
			"f:2: warning: loads.key-file: everybody on this host can read " + key + "; fix: chmod o= " + key},
		"announced without etcd": {announced + "}\n" + checkedService, model.Roles{}, "director",
			"f:2: warning: director.snat.announce: without director.store.etcd the group's directors do not know each other's flows: a lost director's connections end"},
		"announced without sharing": {announced + ", flow-port: 0, store: {etcd: {endpoints: [\"https://10.0.0.9:2379\"]}}}\n" + checkedService, model.Roles{}, "director",
			"f:2: warning: director.snat.announce: with director.flow-port 0 the group's directors do not know each other's flows: a lost director's connections end"},
		"answers on another trunk": {trunks + strings.Replace(inVLAN, "10.0.1.11", "10.0.1.10}\n  - {address: 10.0.1.11, mac: '02:00:00:00:00:0b'}\n  - {address: 10.0.1.12, mac: '02:00:00:00:00:0c'", 1), model.Roles{}, "director",
			"f:11: warning: services[0].backends[1].mac: packets to backend 10.0.1.11 in vlan:100 leave by eth0, the first of director.interfaces, as long as this host has no interface for the VLAN, and director.neighbor answers there on eth1: give segments[].interface (line 1)"},
		"a segment's trunk":       {trunks + "segments: [{id: 'vlan:100', interface: eth1}]\n" + inVLANByMAC, model.Roles{}, "director", ""},
		"a backend's trunk":       {trunks + strings.Replace(inVLANByMAC, "mac:", "interface: eth1, mac:", 1), model.Roles{}, "director", ""},
		"the first trunk, too":    {strings.Replace(trunks, "{name: eth1", "{name: eth0, segment: 'vlan:100'}, {name: eth1", 1) + inVLANByMAC, model.Roles{}, "director", ""},
		"the host's for the VLAN": {strings.Replace(trunks, "{name: eth1", "{name: eth1.100", 1) + inVLANByMAC, model.Roles{}, "director", ""},
		"another VLAN's trunk":    {strings.Replace(trunks, "vlan:100", "vlan:101", 1) + inVLANByMAC, model.Roles{}, "director", ""},
		"EVPN without a VTEP": {director + "bgp: {asn: 65000, router-id: 10.0.0.2, neighbors: [{address: 10.0.0.3, asn: 65000}, {address: 10.0.0.1, asn: 65000, families: [ipv4, evpn]}]}\n" + checkedService, model.Roles{}, "director",
			"f:2: warning: bgp.neighbors[1].families: evpn needs director.vtep, where tunnels end: without it the director tells nobody of a host, and learns of none"},
		"EVPN": {inVXLAN + "bgp: {asn: 65000, router-id: 10.0.0.2, neighbors: [{address: 10.0.0.1, asn: 65000, families: [evpn]}]}\n" + checkedService, model.Roles{}, "director", ""},
		"a host that is no peer": {inVXLAN + "segments: [{id: 'vxlan:5001', peers: [192.0.2.0/28], hosts: [{address: 10.0.1.12, mac: '02:00:00:00:00:0c', vtep: 192.0.2.12}, {address: 10.0.1.13, mac: '02:00:00:00:00:0d', vtep: 192.0.2.99}]}]\n" +
			strings.NewReplacer("  vip", "  segment: vxlan:5001\n  vip", "gue", "l2dsr", "10.0.1.11", "10.0.1.11, mac: '02:00:00:00:00:0b', vtep: 192.0.2.99").Replace(checkedService), model.Roles{}, "director",
			"f:2: warning: segments[0].hosts[1].vtep: 192.0.2.99 is no peer of vxlan:5001: the director drops what hosts there send, such as answers to health checks\n" +
				"f:11: warning: services[0].backends[0].vtep: 192.0.2.99 is no peer of vxlan:5001: the director drops what hosts there send, such as answers to health checks (line 2)"},
		"a key in a directory that is not for all": {director + "loads: {to: [10.0.0.2], key-file: " + kept + "}\n" + checkedService, model.Roles{}, "director", ""},
	} {
		t.Run(name, func(t *testing.T) {
			checked := check(t, "f", test.text, test.roles)
			var says []string
			for _, e := range checked.Errors {
				says = append(says, e.Error())
			}
			if got := strings.Join(says, "\n"); got != test.says || checked.Roles.String() != test.is {
				t.Errorf("it is for %v, and a check says\n%s\nwant %s, and\n%s", checked.Roles, got, test.is, test.says)
			}
		})
	}
}

// Words of other balancers, misspelt ones and former ones are answered with what to write.
func TestFixes(t *testing.T) {
	for text, want := range map[string]string{
		strings.Replace(checkedService, "gue", "TUN", 1):                                       "ipip",
		strings.Replace(checkedService, "gue", "dr", 1):                                        "l2dsr",
		strings.Replace(checkedService, "mode: gue", "mode: gue\n  policy: wlc", 1):            "least-conn",
		strings.Replace(checkedService, "mode: gue", "mode: gue\n  lb_algo: rr", 1):            "policy",
		strings.Replace(checkedService, "  backends:", "  real_servers:", 1):                   "backends",
		strings.Replace(checkedService, "mode: gue", "mode: gue\n  ring-size: 1000", 1):        "1009",
		"director: {interfaces: [eth0], xdp: skb}\n" + checkedService:                          "generic",
		strings.Replace(checkedService, "  backends", "  health: {kind: PING}\n  backends", 1): "icmp",
	} {
		errs := check(t, "f", text, model.Roles{Agent: true}).Errors
		if len(errs) == 0 || errs[0].Fix != want || !strings.Contains(errs[0].Problem, want) {
			t.Errorf("%s\nis answered with %+v, want the fix %s", text, errs, want)
		}
	}
}

// One check finds the problems of all kinds: unknown keys, values that cannot be read, missing and
// repeated keys, values that are wrong by themselves or beside others, limits, and what is missing for
// the file's role; a problem hides no other one, not even in the same service.
func TestOneCheckFindsProblemsOfAllKinds(t *testing.T) {
	text, err := os.ReadFile("testdata/all-kinds.bad.yaml")
	if err != nil {
		t.Fatal(err)
	}
	none := strings.Replace(string(text), "[eth0]", "[] # director.interfaces: is empty", 1) // what a role needs is no problem of a file by itself
	found := map[string]string{}
	for _, e := range check(t, "f", none, model.Roles{Director: true, Agent: true}).Errors {
		if e.Line == 0 {
			t.Errorf("%v names no line", e)
		}
		found[fmt.Sprintf("%d %s", e.Line, e.Path)] += e.Problem
	}
	for n, line := range strings.Split(none, "\n") {
		_, comment, is := strings.Cut(line, "# ")
		for want := range strings.SplitSeq(comment, "; ") {
			field, problem, _ := strings.Cut(want, ": ")
			at := fmt.Sprintf("%d %s", n+1, field)
			if is && (found[at] == "" || !strings.Contains(found[at], problem)) {
				t.Errorf("line %s should have a problem with %q, and has %q", at, problem, found[at])
			}
			delete(found, at)
		}
	}
	if len(found) > 0 {
		t.Errorf("there are also %v", found)
	}
}

// A value that cannot be read is a problem, and what would follow from the value in its place is none:
// for every value of every file, also of those with problems.
func TestLostValuesHaveNoConsequences(t *testing.T) {
	files, err := filepath.Glob("testdata/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatal("no files:", err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if c, err := config.Load(file); err == nil {
			if text, err = json.Marshal(c); err != nil { // all values, in their strictest form
				t.Fatal(err)
			}
		}
		var document any
		if yaml.Unmarshal(text, &document) != nil {
			continue // a file that is no YAML
		}
		says := func() config.Errors {
			text, err := json.Marshal(document)
			if err != nil {
				t.Fatal(err)
			}
			return check(t, file, string(text), model.Roles{Agent: true}).Errors
		}
		before := map[string]bool{}
		for _, e := range says() {
			before[e.Path] = true
		}
		eachValue(document, "", func(path string, set func(any), value any) {
			set([]any{map[string]any{"lost": true}, 1}) // nothing is written so
			errs := says()
			set(value)
			if len(errs) == 0 {
				t.Errorf("%s: %s cannot be read, and nothing is said", file, path)
			}
			for _, e := range errs {
				if !strings.HasPrefix(e.Path, path) && !e.Warning && !before[e.Path] {
					t.Errorf("%s: %s cannot be read, and it is said: %v", file, path, e)
				}
			}
		})
	}
}

// eachValue visits the values in a document that are neither mappings nor lists.
func eachValue(value any, path string, visit func(path string, set func(any), value any)) {
	each := func(value any, path string, set func(any)) {
		switch value.(type) {
		case map[string]any, []any:
			eachValue(value, path, visit)
		default:
			visit(path, set, value)
		}
	}
	switch value := value.(type) {
	case map[string]any:
		for key, of := range value {
			each(of, strings.TrimPrefix(path+"."+key, "."), func(to any) { value[key] = to })
		}
	case []any:
		for i, of := range value {
			each(of, fmt.Sprintf("%s[%d]", path, i), func(to any) { value[i] = to })
		}
	}
}
