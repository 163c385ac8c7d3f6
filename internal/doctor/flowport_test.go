package doctor_test

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"testing"

	"weir.io/weir/internal/doctor"
	"weir.io/weir/internal/model"
	"weir.io/weir/lab/netlab"
)

func testFlowPort(t *testing.T, l lab) {
	c := config(model.NAT, "10.0.1.2")
	c.Director.Group = []netip.Addr{netip.MustParseAddr("10.0.1.9"), netip.MustParseAddr("10.0.1.1")}
	const check = "flow port 10.0.1.1:6082"
	if f, there := examine(t, l.director, doctor.Options{Config: c})[check]; there {
		t.Errorf("without an etcd there is %+v", f)
	}
	c.Director.Store.Etcd.Endpoints = []string{"https://10.0.1.9:2379"}
	want(t, examine(t, l.director, doctor.Options{Config: c}), check, doctor.OK, "is free", "")
	own := listenIn(t, l.director, "10.0.1.1:6082")
	want(t, examine(t, l.director, doctor.Options{Config: c}), check, doctor.OK, fmt.Sprintf("this director's, process %d", os.Getpid()), "")
	handOver(t, own)
	want(t, examine(t, l.director, doctor.Options{Config: c}), check, doctor.Fail, "in use by sleep", "or stop sleep")
	c.Director.FlowPort = new(uint16(6083))
	handOver(t, listenIn(t, l.director, ":6083"))
	want(t, examine(t, l.director, doctor.Options{Config: c}), "flow port 10.0.1.1:6083", doctor.Fail, "in use by sleep", "another port")
}

func listenIn(t *testing.T, h *netlab.Host, at string) *net.TCPListener {
	t.Helper()
	var l net.Listener
	if err := h.Do(func() (err error) {
		l, err = net.Listen("tcp", at)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l.(*net.TCPListener)
}

// handOver gives a listener to another process, until the test ends.
func handOver(t *testing.T, l *net.TCPListener) {
	t.Helper()
	file, err := l.File()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("sleep", "60")
	cmd.ExtraFiles = []*os.File{file}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	file.Close()
	l.Close()
}
