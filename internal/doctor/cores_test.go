package doctor_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"weir.io/weir/internal/device"
	"weir.io/weir/internal/doctor"
	"weir.io/weir/internal/model"
	"weir.io/weir/internal/tune"
	"weir.io/weir/lab/netlab"
)

// doctor tells what weir tune would set, in a line for each kind and interface, and never as a failure.
func TestCores(t *testing.T) {
	l := netlab.ForTest(t)
	client, director := l.Host("client"), l.Host("director")
	link := l.Link(director, client, netlab.LinkOptions{Queues: 4, A: []string{"10.0.0.1/24"}, B: []string{"10.0.0.2/24"}})
	dir := t.TempDir()
	write := func(path, text string) {
		t.Helper()
		path = filepath.Join(dir, path)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text+"\n"), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	write("devices/system/cpu/online", "0-2")
	for _, cpu := range []string{"cpu0", "cpu1"} {
		write("devices/system/cpu/"+cpu+"/cpufreq/scaling_governor", "powersave")
		write("devices/system/cpu/"+cpu+"/cpufreq/scaling_available_governors", "performance powersave")
	}
	options := doctor.Options{Config: config(model.L2DSR, "10.0.0.2"), Role: doctor.Director, Cores: &tune.Host{Sys: dir, Proc: dir, NIC: tune.This().NIC}}
	options.Config.Director.Interfaces = []string{link.A.Name}
	if err := director.Do(func() error {
		return device.SetChannels(link.A.Name, device.Channels{Receive: 1, Send: 1})
	}); err != nil {
		t.Fatal(err)
	}
	found := examine(t, director, options)
	want(t, found, "queues eth0", doctor.Warn, "1 receive queue for 3 CPUs", "weir tune --apply, or ethtool -L eth0 rx 3 tx 3")
	want(t, found, "governor", doctor.Warn, "powersave",
		"weir tune --apply, or echo performance >"+dir+"/devices/system/cpu/cpu0/cpufreq/scaling_governor, and 1 more: weir tune --dry-run lists them")
	for check, f := range found {
		if kind, of, _ := strings.Cut(check, " "); of == "eth0" && (kind == "rings" || kind == "rss" || kind == "hash" || kind == "interrupts") {
			t.Errorf("of a veth it says %s: %s", check, f.Text)
		}
	}
	if err := director.Do(func() error {
		_, err := options.Cores.Apply([]string{link.A.Name}, tune.Options{}, tune.Store{Path: filepath.Join(dir, "tuned"), Write: func([]byte) error { return nil }})
		return err
	}); err != nil {
		t.Fatal(err)
	}
	found = examine(t, director, options)
	want(t, found, "queues eth0", doctor.OK, "3 receive queues for 3 CPUs", "")
	want(t, found, "governor", doctor.OK, "not lowered", "")
}
