package main

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

const small = "pools: [{name: a, addresses: [203.0.113.0/28]}]\ndirectors: [{socket: /run/weir/director.sock}]\n"

func TestSettings(t *testing.T) {
	s, err := parseSettings("f", []byte(small))
	if err != nil {
		t.Fatal(err)
	}
	if o := s.options(); s.Class != "weir.io/weir" || s.Owner != "kube" || o.Mode.String() != "nat" || !o.SNAT || o.Backends != "nodes" || o.NodeHealth {
		t.Errorf("the defaults are %+v, %+v", s, o)
	}
	for text, want := range map[string]string{
		"":      "f: is empty",
		"a: 1":  "f:1: a: unknown key",
		"pools": "f:1: is",
		"pools: [{name: a, addresses: [203.0.113.0/28, 203.0.113.15]}]\n": "f:1: pools[0].addresses[1]: 203.0.113.15 and 203.0.113.0-203.0.113.15 have addresses in common",
		"pools: [{name: a, addresses: [203.0.113.1/28]}]\n":               "203.0.113.0/28 is the prefix",
		"directors: [{socket: /a, server: \"https://b:1\"}]\n":            "f:1: directors[0]: has to have either socket or server",
		"directors: [{socket: /a, ca: /b}]\n":                             "f:1: directors[0]: ca, cert, key and token-file are for server",
		"mode: redirect\n":                                                "f:1: mode: redirect is not available here yet",
		"mode: l2dsr\nbackends: pods\n":                                   "f:1: mode: mode l2dsr reaches nodes only",
		"mtu: 1300\n":                                                     "f:1: mtu: 1300 is out of range 1332 to 9216",
		"mode: dsr\n":                                                     "f:1: mode: ",
		"backends: hosts\n":                                               `f:1: backends: "hosts" is not a target (nodes or pods)`,
		"owner: file\n":                                                   `f:1: owner: "file" is the director's own file's`,
		"owner: \"\"\n":                                                   "f:1: owner: ",
		"lease: {duration: 1s}\n":                                         "f:1: lease.duration: is less than 2s",
		"class: a\nclass: b\n":                                            "f:2: class: is already given on line 1",
		"snat: perhaps\n":                                                 "f:1: snat: is the text \"perhaps\", not true or false",
		"pools: [{name: a, adresses: 1}]":                                 "did you mean addresses?",
	} {
		if _, err := parseSettings("f", []byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q is read with error %v, want %q", text, err, want)
		}
	}
	if _, err := parseSettings("f", []byte("pools: [{name: a, addresses: [203.0.113.0/28]}]\n")); err != nil {
		t.Errorf("without directors, which may all be DirectorGroups', it is read with error %v", err)
	}
	if _, err := parseSettings("f", []byte("directors: [{socket: /run/weir/director.sock}]\n")); err != nil {
		t.Errorf("without pools, which may all be AddressPools, it is read with error %v", err)
	}
}

// The file that the document shows is one.
func TestDocumentedSettingsLoad(t *testing.T) {
	text, err := os.ReadFile("../../../docs/reference/kubernetes.md")
	if err != nil {
		t.Fatal(err)
	}
	match := regexp.MustCompile("(?ms)^```yaml\n(mode: .*?)^```$").FindSubmatch(text)
	if match == nil {
		t.Fatal("docs/reference/kubernetes.md shows no file of the controller's")
	}
	if _, err := parseSettings("docs/reference/kubernetes.md", match[1]); err != nil {
		t.Error(err)
	}
}

func TestClients(t *testing.T) {
	s, err := parseSettings("f", []byte(strings.Replace(small, "socket: /run/weir/director.sock", `server: "ftp://x"`, 1)))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.clients(); err == nil || !strings.Contains(err.Error(), "directors[0]: ") {
		t.Error("a director at no URL gives error", err)
	}
}

// Whatever is wrong at the start is one line, and a status.
func TestExecute(t *testing.T) {
	file := filepath.Join(t.TempDir(), "weir-kube.yaml")
	if err := os.WriteFile(file, []byte(small), 0o600); err != nil {
		t.Fatal(err)
	}
	for args, want := range map[string]string{
		"controller -c /none":                                    "configuration: open /none",
		"controller --log-format xml -c " + file:                 "unknown log format",
		"controller -c " + file + " --kubeconfig /none":          "find the API server: ",
		"controller -c " + file + " --nothing":                   "unknown flag",
		"controller extra":                                       "unknown command",
		"controller -c " + file + " --kubeconfig " + file + "\n": "find the API server: ",
	} {
		var out, err bytes.Buffer
		if code := execute(t.Context(), strings.Fields(args), &out, &err); code != 1 || !strings.Contains(err.String(), want) {
			t.Errorf("weir-kube %s ends with %d and says %q, want %q", args, code, err.String(), want)
		}
	}
}
