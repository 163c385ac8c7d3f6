package agent

import (
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"weir.io/weir/internal/model"
	"weir.io/weir/lab/netlab"
)

// A meter counts the open and the waiting connections of each service, by the address where they
// end. It does not count connections that are half open or closed by the server, or those of
// another service.
func TestLoadsAreMeasured(t *testing.T) {
	lab := netlab.ForTest(t)
	host := lab.Host("host")
	const vip, own = "192.0.2.1", "10.0.1.11"
	host.Address("lo", vip+"/32", "192.0.2.2/32", own+"/32")
	at := func(s string) netip.Addr { return netip.MustParseAddr(s) }
	service := func(name, vip string, port uint16, mode model.Mode, backends ...model.Backend) model.Service {
		return model.Service{Name: name, VIP: at(vip), Protocol: model.TCP, Port: model.PortRange{First: port, Last: port}, Mode: mode, Backends: backends}
	}
	backend := func(address string, port uint16) model.Backend {
		return model.Backend{Address: at(address), Port: port, Weight: 1, State: model.Active}
	}
	config := model.Config{
		Loads: model.Loads{KeyFile: "/key"},
		Services: []model.Service{
			service("tunnelled", vip, 80, model.IPIP, backend(own, 0), backend("10.0.1.12", 0)),
			service("nat", "203.0.113.1", 80, model.NAT, backend(own, 8080)),
			service("redirected", "192.0.2.2", 80, model.Redirect, backend(own, 0)),
			service("elsewhere", vip, 81, model.IPIP, backend("10.0.1.12", 0)),
		},
	}
	a := &Agent{deps: Deps{Log: slog.New(slog.DiscardHandler)}}
	w := newWatched(config, func(a netip.Addr) bool { return a == at(own) })
	a.watched.Store(w)
	var m *Meter
	if err := host.Do(func() (err error) { m, err = a.Meter(); return err }); err != nil {
		t.Fatal(err)
	}
	defer m.Close()

	// The server of the VIP accepts two connections and leaves three in its queue; the others
	// accept all.
	keep := make(chan net.Conn, 16)
	serve := func(address string, most int) {
		listener, err := host.Listen("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { listener.Close() })
		go func() {
			for range most {
				conn, err := listener.Accept()
				if err != nil {
					return
				}
				keep <- conn
			}
		}()
	}
	dial := func(address string) net.Conn {
		conn, err := host.DialContext(t.Context(), "tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		return conn
	}
	serve(vip+":80", 2)
	serve("0.0.0.0:8080", 10)
	serve("192.0.2.2:80", 10)
	serve(own+":80", 10)
	for range 5 {
		dial(vip + ":80")
	}
	dial(own + ":8080")
	dial("192.0.2.2:80")
	dial(own + ":80")
	closed := dial("192.0.2.2:80")

	want := map[string][2]uint32{"tunnelled": {5, 3}, "nat": {1, 0}, "redirected": {2, 0}}
	measured := func() map[string][2]uint32 {
		got := map[string][2]uint32{}
		loads, took, err := m.Loads()
		if err != nil || took <= 0 {
			t.Fatalf("measured in %v: %v", took, err)
		}
		for _, l := range loads {
			for i := range config.Services {
				if s := &config.Services[i]; l.Service == s.ID() {
					got[s.Name] = [2]uint32{l.Connections, l.Queue}
				}
			}
			if l.Pressure < 0 || l.Pressure > 1 || l.Backend.Addr() != at(own) {
				t.Errorf("a load is %+v", l)
			}
		}
		return got
	}
	await := func(what string, redirected uint32) {
		t.Helper()
		want["redirected"] = [2]uint32{redirected, 0}
		var got map[string][2]uint32
		for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(time.Millisecond) { // between two looks
			if got = measured(); got["tunnelled"] == want["tunnelled"] && got["nat"] == want["nat"] && got["redirected"] == want["redirected"] && len(got) == 3 {
				return
			}
		}
		t.Fatalf("%s: open and waiting are %v, want %v", what, got, want)
	}
	await("opened", 3)
	// A client that has closed its end is served on; one that its server has closed is not.
	_ = closed.(*net.TCPConn).CloseWrite()
	await("closed by the client alone", 3)
	for range 6 {
		conn := <-keep
		if conn.RemoteAddr().String() == closed.LocalAddr().String() {
			_ = conn.Close()
			_, _ = io.ReadAll(closed)
			await("closed by both", 2)
			return
		}
	}
	t.Fatal("the server has not got the connection that is closed")
}

func TestPressure(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	text := "some avg10=5.41 avg60=22.63 avg300=21.79 total=1000000\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=5\n"
	var problem error
	p := pressure{groups: map[uint64]*groupStalls{}, read: func() (string, error) { return text, problem }}
	want := func(what string, passed time.Duration, share float64) {
		t.Helper()
		now = now.Add(passed)
		if got := p.of(7, now); got != share {
			t.Errorf("%s: the pressure is %v, want %v", what, got, share)
		}
	}
	want("nothing to compare with", 0, 0)
	text = "some total=1500000\n"
	want("too early", time.Second, 0)
	want("half a second in two", time.Second, 0.25)
	want("and on", time.Second, 0.25)
	text = "some total=9500000\n"
	want("many threads wait, and the sum was written late", time.Second, 1)
	text, problem = "", net.ErrClosed
	want("it is not there any more", 2*time.Second, 0)
	text, problem = "some total=none\n", nil
	want("it is something else", 2*time.Second, 0)

	// A server's cgroup counts where it is asked more of than the host as a whole.
	p.mount = t.TempDir()
	dir := filepath.Join(p.mount, "system.slice", "server.service")
	write := func(text string) {
		t.Helper()
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "cpu.pressure"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("some total=100\n")
	var stat syscall.Stat_t
	if err := syscall.Stat(dir, &stat); err != nil {
		t.Fatal(err)
	}
	ofGroup := func(what string, group uint64, share float64) {
		t.Helper()
		now = now.Add(2 * time.Second)
		if got := p.of(group, now); got != share {
			t.Errorf("%s: the pressure is %v, want %v", what, got, share)
		}
	}
	text = "some total=0\n"
	ofGroup("the first look", stat.Ino, 0)
	write("some total=500100\n")
	text = "some total=200000\n"
	ofGroup("a quarter of the time, and a tenth on the host", stat.Ino, 0.25)
	text = "some total=2200000\n"
	ofGroup("none, and all of the time on the host", stat.Ino, 1)
	ofGroup("a cgroup that is not there", stat.Ino+1<<32, 0)
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	ofGroup("a cgroup that is gone", stat.Ino, 0)

	for mounts, at := range map[string]string{
		"24 1 0:22 / /sys/fs/cgroup rw - cgroup2 none rw\n":                                                                     "/sys/fs/cgroup",
		"31 2 0:26 / /sys/fs/cgroup/cpu rw - cgroup none rw,cpu\n32 2 0:27 / /sys/fs/cgroup/unified rw shared:4 - cgroup2 x rw": "/sys/fs/cgroup/unified",
		"33 2 0:28 / /proc rw - proc proc rw\n":                                                                                 "",
	} {
		if got := unifiedIn(mounts); got != at {
			t.Errorf("cgroup v2 of %q is at %q, want %q", mounts, got, at)
		}
	}
}
