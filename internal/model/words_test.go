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

// Where weir has nothing of the kind, the answer says why and what to use: for all that is in the blocks
// of other balancers' files.
func TestEveryWordOfTheirFilesIsAnswered(t *testing.T) {
	known := knownWords(t)
	for _, test := range []struct{ kind, words string }{
		// keepalived.conf(5): the file, virtual_server, real_server, and the checks.
		{"Config", "global_defs vrrp_instance vrrp_script vrrp_sync_group virtual_server virtual_server_group static_ipaddress static_routes"},
		{"Service", "delay_loop lb_algo lvs_sched lb_kind lvs_method persistence_timeout persistence_granularity protocol real_server sorry_server sorry_server_inhibit ha_suspend alpha omega quorum quorum_up quorum_down hysteresis retry delay_before_retry connect_timeout virtualhost ops"},
		{"Backend", "weight uthreshold lthreshold inhibit_on_failure notify_up notify_down HTTP_GET SSL_GET TCP_CHECK SMTP_CHECK DNS_CHECK MISC_CHECK UDP_CHECK PING_CHECK FILE_CHECK delay_loop"},
		{"kind", "HTTP_GET SSL_GET TCP_CHECK SMTP_CHECK DNS_CHECK MISC_CHECK UDP_CHECK PING_CHECK FILE_CHECK BFD_CHECK"},
		{"HealthCheck", "connect_timeout connect_port nb_get_retry delay_before_retry misc_path warmup digest retry"},
		{"protocol", "tcp/udp TCP udp SCTP"},
		// HAProxy
		{"Config", "global defaults frontend backend listen"},
		{"Service", "bind mode balance server option timeout default_backend use_backend stick-table acl http-request maxconn cookie"},
		{"mode", "tcp http"},
		{"Backend", "check inter rise fall maxconn backup send-proxy ssl slowstart weight"},
		{"policy", "roundrobin static-rr leastconn first source uri url_param hdr rdp-cookie random hash"},
		// nginx's stream
		{"Config", "stream upstream server"},
		{"Service", "listen upstream server proxy_pass hash"},
		{"Backend", "max_fails fail_timeout max_conns backup"},
		// ipvsadm(8)
		{"Service", "tcp-service udp-service fwmark-service scheduler persistent netmask one-packet real-server"},
		{"policy", "rr wrr lc wlc lblc lblcr dh sh sed nq fo ovf mh twos"},
		{"Backend", "gatewaying ipip masquerading u-threshold l-threshold tun-type tun-port"},
	} {
		for word := range strings.FieldsSeq(test.words) {
			own := slices.Contains(known[test.kind], asOtherWord(word))
			if meant := Meant(test.kind, word, slices.Values(known[test.kind])); !own && meant == "" && Instead(test.kind, word) == "" {
				t.Errorf("%s %s has no answer", test.kind, word)
			}
		}
	}
	for kind, words := range absentWords {
		for word, instead := range words {
			if slices.Contains(known[kind], word) || otherWords[kind][word] != "" {
				t.Errorf("%s %q is read, or leads to what is", kind, word)
			}
			if asOtherWord(word) != word || !strings.Contains(instead, "use ") && !strings.Contains(instead, "leave it out") {
				t.Errorf("%s %q is not looked for as it is written, or nothing says what to use: %q", kind, word, instead)
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
	for _, of := range []any{Config{}, Director{}, Service{}, Backend{}, BackendCheck{}, HealthCheck{}, HealthHTTP{}, Hook{}, BGP{}, BGPNeighbor{}} {
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
