package config_test

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"net/netip"
	"weir.io/weir/internal/config"
	"weir.io/weir/internal/model"
)

var update = flag.Bool("update", false, "write the errors of testdata/*.bad.yaml as they are now")

var comparable = cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{})

func TestGoodFiles(t *testing.T) {
	files, err := filepath.Glob("testdata/*.good.*")
	if err != nil || len(files) == 0 {
		t.Fatal("no good files:", err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			c, err := config.Load(file)
			if err != nil {
				t.Fatal(err)
			}
			checkRoundTrip(t, c)
		})
	}
}

// checkRoundTrip writes a configuration and reads it again.
func checkRoundTrip(t *testing.T, c model.Config) {
	t.Helper()
	text, err := config.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	again, err := config.Parse("again.yaml", text)
	if err != nil {
		t.Fatalf("what weir wrote it does not read: %v\n%s", err, text)
	}
	if diff := cmp.Diff(c, again, comparable); diff != "" {
		t.Errorf("written and read again, the configuration differs (-first +again):\n%s", diff)
	}
}

// TestBadFiles compares each testdata/x.bad.yaml's error with x.bad.txt.
func TestBadFiles(t *testing.T) {
	files, err := filepath.Glob("testdata/*.bad.yaml")
	if err != nil || len(files) == 0 {
		t.Fatal("no bad files:", err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			_, err = config.Parse(filepath.Base(file), text)
			if err == nil {
				t.Fatal("a bad file is accepted")
			}
			wantFile := strings.TrimSuffix(file, ".yaml") + ".txt"
			if *update {
				if err := os.WriteFile(wantFile, []byte(err.Error()+"\n"), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, readErr := os.ReadFile(wantFile)
			if readErr != nil {
				t.Fatal(readErr)
			}
			if diff := cmp.Diff(string(want), err.Error()+"\n"); diff != "" {
				t.Errorf("another error than %s (-want +got):\n%s", wantFile, diff)
			}
		})
	}
}

func TestDefaults(t *testing.T) {
	c, err := config.Load("testdata/minimal.good.yaml")
	if err != nil {
		t.Fatal(err)
	}
	want := []model.Backend{
		{Name: "a", Address: netip.MustParseAddr("10.0.1.1"), Weight: 100, State: model.Active},
		{Name: "10.0.1.2", Address: netip.MustParseAddr("10.0.1.2"), Weight: 100, State: model.Active},
	}
	if diff := cmp.Diff(want, c.Services[0].Backends, comparable); diff != "" {
		t.Errorf("backends (-want +got):\n%s", diff)
	}
	if c.Director.XDP != model.XDPAuto || c.Director.Limits.Services != model.DefaultServices {
		t.Errorf("the director has no defaults: %+v", c.Director)
	}
	if c.Agent.UDPFlows == nil || *c.Agent.UDPFlows != model.DefaultUDPFlows {
		t.Errorf("the agent has no defaults: %+v", c.Agent)
	}
}

// TestFull checks that no key is lost on the way from the file.
func TestFull(t *testing.T) {
	c, err := config.Load("testdata/full.good.yaml")
	if err != nil {
		t.Fatal(err)
	}
	s := c.Services[0]
	if c.Agent.UDPFlows == nil || *c.Agent.UDPFlows != 0 {
		t.Errorf("agent: %+v", c.Agent)
	}
	if s.RingSize != 65537 || s.Affinity != model.AffinitySourceIP || s.Mode != model.GUE {
		t.Errorf("first service: %+v", s)
	}
	l2dsr := model.L2DSR
	want := model.Backend{
		Name: "beside", Address: netip.MustParseAddr("10.0.1.2"), State: model.Active,
		Mode: &l2dsr, MAC: model.MAC{2, 0, 0, 0, 0, 1}, VLAN: 7,
	}
	if diff := cmp.Diff(want, s.Backends[1], comparable); diff != "" {
		t.Errorf("second backend (-want +got):\n%s", diff)
	}
	if got := c.Services[1].Segment.String(); got != "vlan:100.200" {
		t.Errorf("segment %s, want vlan:100.200", got)
	}
	if got := fmt.Sprint(c.Directors); got != "[10.0.0.0/24 2001:db8::/64 192.0.2.7/32]" {
		t.Errorf("directors %s", got)
	}
	if got := c.Services[3].Port; !got.All() {
		t.Errorf("port %s, want all", got)
	}
}

func TestErrorsAreTyped(t *testing.T) {
	_, err := config.Parse("weir.yaml", []byte("services:\n- {name: a, vip: 203.0.113.1, protocol: tcp, port: 1, mode: ipip, backends: [{address: 10.0.0.1, weight: 70000}]}\n"))
	var one config.Error
	if !errors.As(err, &one) || one.Line != 2 || one.Path != "services[0].backends[0].weight" {
		t.Errorf("no typed error with line and path: %#v", err)
	}
	if want := "weir.yaml:2: services[0].backends[0].weight: 70000 is out of range 0 to 65535"; err.Error() != want {
		t.Errorf("error %q, want %q", err, want)
	}
}

func TestLoadNamesMissingFile(t *testing.T) {
	_, err := config.Load("testdata/none.yaml")
	if !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), "testdata/none.yaml") {
		t.Errorf("error %v does not name the missing file", err)
	}
}

// TestManyServices reads 10,000 services of 4 backends.
func TestManyServices(t *testing.T) {
	var b bytes.Buffer
	b.WriteString("director:\n  interfaces: [eth0]\n  limits: {services: 10000, ring-memory: 134217728}\nservices:\n")
	for i := range 10000 {
		fmt.Fprintf(&b, "- name: s%d\n  vip: 203.0.%d.%d\n  protocol: tcp\n  port: 443\n  mode: ipip\n  backends:\n", i, i>>8, i&255)
		for j := range 4 {
			fmt.Fprintf(&b, "  - {address: 10.%d.%d.%d}\n", j, i>>8, i&255)
		}
	}
	c, err := config.Parse("many.yaml", b.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	if got := c.Services[9999].Backends[3].Address.String(); got != "10.3.39.15" {
		t.Errorf("last backend %s", got)
	}
}

func FuzzParse(f *testing.F) {
	files, err := filepath.Glob("testdata/*.yaml")
	if err != nil {
		f.Fatal(err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		c, err := config.Parse("fuzz.yaml", text)
		if err == nil {
			checkRoundTrip(t, c)
			return
		}
		var typed config.Errors
		if !errors.As(err, &typed) || len(typed) == 0 {
			t.Errorf("not a typed error: %#v", err)
		}
	})
}
