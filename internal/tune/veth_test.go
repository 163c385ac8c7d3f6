package tune

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"weir.io/weir/internal/device"
	"weir.io/weir/lab/netlab"
)

// A veth has queues and threads, and a program by which packets go through them: what can be set is set in the
// kernel, and restored. It has no interrupts, no rings that can be told, and no RSS.
func TestVeth(t *testing.T) {
	lab := netlab.ForTest(t)
	director, client := lab.Host("director"), lab.Host("client")
	link := lab.Link(director, client, netlab.LinkOptions{XDP: true, Queues: 4, A: []string{"10.0.0.1/24"}, B: []string{"10.0.0.2/24"}})
	link.A.ReceiveXDP()
	sys := sysfsOf(t, director)
	dir := t.TempDir()
	store := Store{Path: filepath.Join(dir, RecordName), Write: func(text []byte) error {
		return os.WriteFile(filepath.Join(dir, RecordName), text, 0o600)
	}}
	host := This()
	host.Sys = sys
	name := link.A.Name
	queues := func() device.Channels {
		now, _, err := device.ChannelsOf(name)
		if err != nil {
			t.Error(err)
		}
		return now
	}
	threaded := func() string { return readText(filepath.Join(sys, "class/net", name, "threaded")) }
	// A veth with a program receives by as many queues as its other end sends.
	if err := client.Do(func() error { return device.SetChannels(link.B.Name, device.Channels{Receive: 4, Send: 1}) }); err != nil {
		t.Fatal(err)
	}
	err := director.Do(func() error {
		few := device.Channels{Receive: 1, Send: 1}
		if err := device.SetChannels(name, few); err != nil {
			return err
		}
		const want = 4
		parts, err := host.Survey([]string{name}, Options{Threaded: true})
		if err != nil {
			return err
		}
		for _, p := range parts {
			if p.Interface == name && p.Kind != Queues && p.Kind != Threaded {
				t.Errorf("of a veth it says %s: %s", p.Check(), p.Text)
			}
		}
		changes, err := host.Apply([]string{name}, Options{Threaded: true}, store)
		if err != nil {
			return err
		}
		if got := queues(); got.Receive != want || got.Send != want || threaded() != "1" {
			t.Errorf("the veth has %+v and threaded %s, after %v", got, threaded(), changes)
		}
		for _, c := range changes {
			if c.Result != Set {
				t.Errorf("%s", c.String())
			}
		}
		threads, _ := (&survey{host: host}).threads(&nic{name: name})
		if threads == 0 {
			t.Errorf("no thread serves the queues, though threaded is %s", threaded())
		}
		if _, _, err := host.Undo(store); err != nil {
			return err
		}
		if got := queues(); got != few || threaded() != "0" {
			t.Errorf("undo leaves %+v and threaded %s, want %+v and 0", got, threaded(), few)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// What the kernel refuses, and what a veth does not have, is an error that says so.
func TestVethRefuses(t *testing.T) {
	lab := netlab.ForTest(t)
	director, client := lab.Host("director"), lab.Host("client")
	link := lab.Link(director, client, netlab.LinkOptions{Queues: 2})
	err := director.Do(func() error {
		n := newNIC(link.A.Name)
		if err := n.SetChannels(device.Channels{Receive: 3, Send: 3}); !errors.Is(err, unix.EINVAL) {
			t.Errorf("3 queues of 2: %v, want %v", err, unix.EINVAL)
		}
		if _, _, err := n.Rings(); !unsupported(err) {
			t.Errorf("the rings of a veth: %v, want %v", err, unix.EOPNOTSUPP)
		}
		if err := n.SetRings(device.Rings{Receive: 1}); !unsupported(err) {
			t.Errorf("set the rings of a veth: %v, want %v", err, unix.EOPNOTSUPP)
		}
		if _, err := n.HashFields(device.HashedUDP4); !unsupported(err) {
			t.Errorf("what RSS hashes of a veth: %v, want %v", err, unix.EOPNOTSUPP)
		}
		if err := n.SetHashFields(device.HashedUDP4, device.HashPorts); !unsupported(err) {
			t.Errorf("set what RSS hashes of a veth: %v, want %v", err, unix.EOPNOTSUPP)
		}
		if err := n.ResetIndirection(); !errors.Is(err, device.ErrNoRSS) {
			t.Errorf("reset the indirection table of a veth: %v, want %v", err, device.ErrNoRSS)
		}
		if _, err := newNIC("eth7").Device(); err == nil || err.Error() != "there is no interface eth7" {
			t.Errorf("a missing interface: %v", err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// sysfsOf returns a tree with a sysfs that shows a host's interfaces, and four CPUs: those of the machine stay
// as they are.
func sysfsOf(t *testing.T, h *netlab.Host) (dir string) {
	t.Helper()
	dir = t.TempDir()
	real, cpus := filepath.Join(dir, "real"), filepath.Join(dir, "devices/system/cpu")
	if err := errors.Join(os.Mkdir(real, 0o755), os.Symlink("real/class", filepath.Join(dir, "class")),
		os.MkdirAll(cpus, 0o755), os.WriteFile(filepath.Join(cpus, "online"), []byte("0-3\n"), 0o644)); err != nil {
		t.Fatal(err)
	}
	if err := h.Do(func() error { return unix.Mount("sysfs", real, "sysfs", 0, "") }); err != nil {
		t.Fatal("mount a sysfs:", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(real, unix.MNT_DETACH); err != nil {
			t.Error("unmount the sysfs:", err)
		}
	})
	return dir
}
