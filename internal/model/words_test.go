package model

import (
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
)

func TestMeant(t *testing.T) {
	known := map[string]int{"name": 0, "vip": 1, "port": 2, "mode": 3, "backends": 4, "affinity": 5, "mac": 6, "ring-size": 7, "AAAA": 8}
	for key, want := range map[string]string{
		"backend":   "backends",
		"backends_": "backends",
		"prot":      "port",
		"vips":      "vip",
		"afinitty":  "affinity",
		"Mode":      "mode",
		"VIP":       "vip",
		"ringSize":  "ring-size",
		"ring_size": "ring-size",
		"aaaa":      "AAAA",
		"host":      "",
		"weight":    "",
		"":          "",
	} {
		if got := Meant("", key, maps.Keys(known)); got != want {
			t.Errorf("%q is taken for %q, want %q", key, got, want)
		}
	}
}

// The words of other balancers lead to weir's, wherever a name is read.
func TestWordsOfOtherBalancers(t *testing.T) {
	for _, test := range []struct{ kind, words, want string }{
		{"mode", "dr DR DSR gatewaying direct_routing", "l2dsr"},
		{"mode", "tun TUN tunnel TUNNELING", "ipip"},
		{"mode", "masq NAT MASQUERADE fullnat", "nat"},
		{"policy", "rr wrr roundrobin ROUND_ROBIN static-rr", "round-robin"},
		{"policy", "lc wlc leastconn LEAST_CONNECTIONS", "least-conn"},
		{"policy", "sh mh dh source SOURCE_IP", "maglev"},
		{"affinity", "ClientIP SOURCE_IP", "source-ip"},
		{"state", "maint disabled", "down"},
		{"kind", "TCP_CHECK", "tcp"},
		{"kind", "PING", "icmp"},
		{"xdp mode", "skb", "generic"},
		{"Service", "lb_algo lvs_sched scheduler balance", "policy"},
		{"Service", "lb_kind lvs_method", "mode"},
		{"Service", "real_server members servers", "backends"},
		{"Service", "loadBalancerSourceRanges", "source-ranges"},
		{"HealthCheck", "delay_loop inter", "interval"},
		{"BGPNeighbor", "peerASN peer-asn remote-as", "asn"},
	} {
		for word := range strings.FieldsSeq(test.words) {
			if got := Meant(test.kind, word, slices.Values(knownWords(t)[test.kind])); got != test.want {
				t.Errorf("%s %s is taken for %q, want %q", test.kind, word, got, test.want)
			}
		}
	}
}

// knownWords are weir's own words, by their kind.
func knownWords(t *testing.T) map[string][]string {
	t.Helper()
	known := map[string][]string{}
	for _, n := range []interface {
		words() (kind string, list []string)
	}{
		modeNames, policyNames, affinityNames, stateNames, protocolNames, checkKindNames, xdpModeNames, roleNames,
	} {
		kind, list := n.words()
		known[kind] = list
	}
	for _, of := range []any{Config{}, Director{}, Service{}, Backend{}, HealthCheck{}, HealthHTTP{}, BGP{}, BGPNeighbor{}} {
		for _, field := range reflect.VisibleFields(reflect.TypeOf(of)) {
			key, _, _ := strings.Cut(field.Tag.Get("json"), ",")
			known[reflect.TypeOf(of).Name()] = append(known[reflect.TypeOf(of).Name()], key)
		}
	}
	return known
}

func (n names[T]) words() (kind string, list []string) { return n.kind, n.texts() }

// Every word leads to one that is read there, is none itself, and is written as it is looked for.
func TestOtherWordsLeadToKnownOnes(t *testing.T) {
	known := knownWords(t)
	for kind, words := range otherWords {
		for word, ours := range words {
			if !slices.Contains(known[kind], ours) {
				t.Errorf("%s %q leads to %q, which is not read there", kind, word, ours)
			}
			if slices.Contains(known[kind], word) {
				t.Errorf("%s %q is weir's own", kind, word)
			}
			if got := Meant(kind, strings.ToUpper(strings.ReplaceAll(word, "-", "_")), slices.Values(known[kind])); got != ours {
				t.Errorf("%s %q is taken for %q", kind, word, got)
			}
		}
	}
}
