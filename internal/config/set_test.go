package config_test

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"weir.io/weir/internal/config"
)

const setService = "- {name: a, vip: 192.0.2.1, protocol: tcp, port: 80, mode: nat, snat: true, backends: [{address: 10.0.0.1}]}\n"

func TestParseSet(t *testing.T) {
	services, err := config.ParseSet("set.yaml", []byte("services:\n"+setService))
	if err != nil || len(services) != 1 || services[0].Backends[0].Weight != 100 {
		t.Errorf("a set is read as %v, error %v", services, err)
	}
	if services, err := config.ParseSet("set.yaml", []byte("services: []\n")); err != nil || len(services) != 0 {
		t.Errorf("an empty set is read as %v, error %v", services, err)
	}
	for text, want := range map[string]string{
		"":                                      "set.yaml: is empty",
		"{}":                                    "set.yaml: services: is required",
		"director: {}\nservices: []\n":          "set.yaml:1: director: unknown key (known here: checks, services)",
		"services:\n" + setService + setService: "set.yaml:3: services[1].name: \"a\" is already the name of services[0] (line 2)",
		"services:\n" + strings.Replace(setService, "nat", "nta", 1):    "set.yaml:2: services[0].mode: ",
		"services:\n" + strings.Replace(setService, "port: 80,", "", 1): "set.yaml:2: services[0].port: is required",
	} {
		if _, err := config.ParseSet("set.yaml", []byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q is read with error %v, want %s", text, err, want)
		}
	}
}

// The text that the API writes in the place of a key can be put, and is refused in a file.
func TestHiddenKeysAreRefusedInFiles(t *testing.T) {
	const text = "services:\n- name: q\n  vip: 203.0.113.1\n  protocol: udp\n  port: 443\n  mode: gue\n" +
		"  quic: [{id: 0, nonce-length: 8, key: hidden}]\n  backends: [{address: 10.0.0.1, server-id: \"0102\"}]\n"
	if services, err := config.ParseSet("set", []byte(text)); err != nil || !services[0].QUIC[0].Key.Hidden() {
		t.Errorf("a set with a hidden key: %v", err)
	}
	_, err := config.Parse("weir.yaml", []byte(text))
	const want = "weir.yaml:7: services[0].quic[0].key: stands for a key that may not be seen; write the key"
	if err == nil || err.Error() != want {
		t.Errorf("a file with a hidden key gives\n  %v\nwant\n  %s", err, want)
	}
}

// A valid set is still valid when the parsed set is written again, in JSON too.
func FuzzParseSet(f *testing.F) {
	f.Add("services:\n" + setService)
	f.Add(`{"services": [{"name": "\u00fc\ud83d\ude00", "vip": "2001:db8::1", "protocol": "udp", "port": "1-2", "mode": "gue", "backends": []}]}`)
	f.Add("services: []")
	f.Fuzz(func(t *testing.T, text string) {
		services, err := config.ParseSet("set", []byte(text))
		if err != nil {
			return
		}
		written, err := json.Marshal(map[string]any{"services": services})
		if err != nil {
			t.Fatal(err)
		}
		again, err := config.ParseSet("set", written)
		if err != nil {
			t.Fatalf("%v:\n%s", err, written)
		}
		if second, err := json.Marshal(map[string]any{"services": again}); err != nil || !bytes.Equal(second, written) {
			t.Fatalf("%s is understood as\n%s: %v", written, second, err)
		}
	})
}
