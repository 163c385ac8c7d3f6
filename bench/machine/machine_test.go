package machine

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"
)

func TestVersion(t *testing.T) {
	for said, want := range map[string]string{
		"iptables v1.8.9 (nf_tables)":                                  "1.8.9",
		"nftables v1.0.6 (Lester Gooch #5)":                            "1.0.6",
		"nginx version: nginx/1.22.1":                                  "1.22.1",
		"HAProxy version 2.6.12-1+deb12u4 2026/10/17 - https://x.org/": "2.6.12-1+deb12u4",
		"wrk debian/4.1.0-3+b2 [epoll] Copyright (C) 2012\nUsage":      "4.1.0-3+b2",
		"iperf 3.12 (cJSON 1.7.15)\nLinux":                             "3.12",
		"":                                                             "",
		"no such thing":                                                "",
	} {
		if got := version([]byte(said)); got != want {
			t.Errorf("%q is version %q, want %q", said, got, want)
		}
	}
}

func TestMitigations(t *testing.T) {
	directory := t.TempDir()
	for name, text := range map[string]string{"meltdown": "Not affected\n", "spectre_v2": "Mitigation: Retpolines\n"} {
		if err := os.WriteFile(filepath.Join(directory, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	found := mitigations(directory)
	if len(found) != 1 || found["spectre_v2"] != "Mitigation: Retpolines" {
		t.Errorf("found %v, want what is done about spectre_v2 alone", found)
	}
}

func TestDescribe(t *testing.T) {
	m := Describe(t.Context())
	if m.Cores != runtime.NumCPU() || m.MemoryBytes < 1<<20 || m.Kernel == "" || m.Go == "" || m.Arch == "" {
		t.Errorf("the description is %+v", m)
	}
	if len(m.Latencies) != len(workingSets) {
		t.Errorf("latencies of %d sets, want %d", len(m.Latencies), len(workingSets))
	}
	for _, l := range m.Latencies {
		if !(l.Nanoseconds > 0) {
			t.Errorf("a read of %d bytes takes %v ns", l.Bytes, l.Nanoseconds)
		}
	}
}

// The chain leads through every line before it comes back.
func TestChain(t *testing.T) {
	const lines = 1000
	memory := chain(lines)
	seen, at := map[uint64]bool{}, uint64(0)
	for range lines {
		seen[at] = true
		at = memory[at*line/8]
	}
	if len(seen) != lines || at != 0 {
		t.Errorf("%d of %d lines seen, then line %d", len(seen), lines, at)
	}
}
