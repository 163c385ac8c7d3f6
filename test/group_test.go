package test

import (
	"fmt"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"weir.io/weir/internal/model"
	"weir.io/weir/lab/etcdlab"
	"weir.io/weir/lab/netlab"
)

// A group shares its sets in an etcd, over TLS: what one director is given, both forward, and by
// the same rows. The loss of one member of etcd, or of all, changes nothing on the wire, not even
// for a director that is killed and starts without etcd.
//
//	client --- router --- switch --- director, director2
//	                             --- backend1, backend2, backend3
//	                             --- store (three members of etcd)
func TestGroupSharesSets(t *testing.T) {
	t.Parallel()
	w := way{mode: "l2dsr"}
	l := newLab(t, size{backends: 3})
	second, _ := l.secondDirector()
	etcd, store := l.startStore(etcdlab.Options{Members: 3, Secure: true})
	for _, b := range l.backends {
		startDaemon(t, b, "agent", configText("", "eth0", w.service("tcp", "80", everyBackend(3))))
		startNginx(t, b)
	}
	text := fmt.Sprintf("notice: 200ms\ndirector:\n  interfaces: [eth0]\n  group: [%s, %s]\n  flow-port: 0\n%sservices: []\n",
		lanAddress(directorHost, false), lanAddress(otherDirector, false), store)
	directors := []*daemon{startDaemon(t, l.director, "run", text), startDaemon(t, second, "run", text)}
	addresses := []string{lanAddress(directorHost, false).String(), lanAddress(otherDirector, false).String()}

	apply := func(by *daemon, backends int) {
		t.Helper()
		by.apply(w.service("tcp", "80", everyBackend(backends)))
		for _, d := range directors {
			// Until it places connections by the new set, it uses the previous one.
			d.waitFor("forward the set", func() bool {
				services, err := d.services()
				return err == nil && len(services) == 1 && active(services[0]) == backends && services[0].Log.Coming == 0
			})
		}
	}
	l.client.Sysctl("net.ipv4.tcp_max_tw_buckets", "0") // a port is free as soon as its connection has ended
	// brings returns which backend answers connections from fixed ports, by each director.
	ports := 30000
	brings := func() (all [2]string) {
		t.Helper()
		for i, address := range addresses {
			l.router.Route("192.0.2.0/24", address)
			for port := range 24 {
				all[i] += " " + curl(t, l.client, "--local-port", strconv.Itoa(ports+port), w.url("name"))
			}
			// The last packets of a connection come some time after curl has ended. The other
			// director would have to guess their flow's backend, and remember it: the next
			// connection from that port would then go by the guess, and not by the ring.
			for _, h := range append([]*netlab.Host{l.client}, l.backends...) {
				waitFor(t, "the client's connections to end on "+h.Name, func() bool {
					return on(t, h, "ss", "-Htn", "state", "connected", "exclude", "time-wait", "src", w.vip().String(), "or", "dst", w.vip().String()) == ""
				})
			}
		}
		return all
	}

	apply(directors[0], 3)
	// Each is asked for the group's directors, and both have the same revision.
	for i, d := range directors {
		d.waitFor("list the group's directors with what they run", func() bool {
			runs, both := d.directors()
			return both && runs[0].Revision == runs[1].Revision && runs[0].Revision > 0 && runs[i].Self && !runs[1-i].Self &&
				runs[0].Address.String() == addresses[0] && runs[1].Address.String() == addresses[1] && runs[1-i].Services == 1
		})
	}
	before := brings()
	if before[0] != before[1] || !strings.Contains(before[0], "backend1") || !strings.Contains(before[0], "backend3") {
		t.Fatalf("the directors bring\n%s\n%s", before[0], before[1])
	}
	unchanged := func(what string) {
		t.Helper()
		if after := brings(); after != before {
			t.Errorf("%s has changed what the directors bring from\n%s\nto\n%s\n%s", what, before[0], after[0], after[1])
		}
	}
	etcd.Kill(0)
	unchanged("the loss of one member of etcd")
	apply(directors[1], 2)
	before = brings()
	if before[0] != before[1] || strings.Contains(before[0], "backend3") {
		t.Errorf("with one member less the directors bring\n%s\n%s", before[0], before[1])
	}
	etcd.Kill(1)
	etcd.Kill(2)
	unchanged("the loss of etcd")
	directors[0].end(syscall.SIGKILL)
	unchanged("the end of a director without etcd")
	directors[0].start()
	directors[0].waitFor("start from its disk", func() bool {
		return strings.Contains(directors[0].logged(), "the group's last known state is used")
	})
	directors[0].waitFor("forward the set", func() bool {
		services, err := directors[0].services()
		return err == nil && len(services) == 1 && active(services[0]) == 2
	})
	unchanged("the start of a director without etcd")
	if out, err := tryOn(t, l.director, weir, "doctor", "-c", directors[0].config, "--bpffs", directors[0].bpffs); err == nil || !strings.Contains(out, "ask etcd at") {
		t.Errorf("doctor is content without etcd:\n%s", out)
	}
	for i := range 3 {
		etcd.Start(i)
	}
	directors[0].waitFor("find etcd again", func() bool {
		return strings.Contains(directors[0].logged(), `msg="problem is over" kind=group part=etcd `)
	})
	apply(directors[0], 3)
	ports = 31000 // flows of the earlier ports may be remembered
	if after := brings(); after[0] != after[1] || !strings.Contains(after[0], "backend3") {
		t.Errorf("with etcd back the directors bring\n%s\n%s", after[0], after[1])
		for _, d := range directors {
			t.Logf("%s has %+v and logged\n%s", d.host.Name, d.backends(), d.logged())
		}
	}
}

// active counts the backends that own slots.
func active(s model.ServiceStatus) int {
	n := 0
	for _, b := range s.Backends {
		if b.State == model.Active && b.Slots > 0 {
			n++
		}
	}
	return n
}
