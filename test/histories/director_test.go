package histories

import (
	"errors"
	"io"
	"log/slog"
	"net/netip"
	"path/filepath"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"weir.io/weir/internal/datapath"
	"weir.io/weir/internal/engine"
	"weir.io/weir/internal/model"
)

const xdpDrop, xdpPass, xdpRedirect = 1, 2, 4

// director is a director of a group: a datapath with maps of its own.
type director struct {
	*datapath.Datapath
	wire, pin string
	program   *ebpf.Program

	revision int
	unseen   map[netip.AddrPort]bool
	planner  *engine.Planner
	service  model.TableService        // the service that it was told
	sent     map[model.Flow]netip.Addr // where it has sent datagrams of these flows, since it was empty
}

var silent = slog.New(slog.NewTextHandler(io.Discard, nil))

// load starts a director that has no table yet.
func (d *director) load() (err error) {
	d.program = nil
	d.Datapath, err = datapath.Open(datapath.Options{Pin: d.pin, Log: silent,
		Limits: model.Limits{Services: 16, Backends: 512, RingMemory: 8 << 20, Fragments: 1024, Flows: 4096}})
	return err
}

func (d *director) close() error {
	if d.Datapath == nil {
		return nil
	}
	return errors.Join(d.program.Close(), d.Close()) // closing a nil program is fine
}

// start makes it forget everything.
func (d *director) start(t testing.TB) {
	t.Helper()
	d.set(t, model.Table{})
	d.revision, d.sent = 0, map[model.Flow]netip.Addr{}
	d.forget()
}

// forget drops what a new process does not know.
func (d *director) forget() {
	d.unseen, d.planner = map[netip.AddrPort]bool{}, engine.NewPlanner()
}

// restart restarts it: with its pins, or with nothing.
func (d *director) restart(t testing.TB, empty bool) {
	t.Helper()
	must(t, d.close())
	if empty {
		must(t, datapath.Detach(d.pin))
		clear(d.sent)
	}
	must(t, d.load())
	d.forget()
}

// apply gives it the table.
func (d *director) apply(t testing.TB, table model.Table) {
	t.Helper()
	d.service = table.Services[0]
	d.set(t, table)
}

func (d *director) set(t testing.TB, table model.Table) {
	t.Helper()
	table.Interfaces, table.TunnelSource, table.ICMPRate = []string{d.wire}, tunnels, 100
	must(t, d.Set(table))
	if d.program == nil {
		program, err := attached(filepath.Join(d.pin, "xdp-"+d.wire))
		must(t, err)
		d.program = program
	}
}

// attached is the program of a pinned link: the one that packets would meet. The caller closes it.
func attached(pin string) (*ebpf.Program, error) {
	l, err := link.LoadPinnedLink(pin, nil)
	if err != nil {
		return nil, err
	}
	defer l.Close()
	info, err := l.Info()
	if err != nil {
		return nil, err
	}
	return ebpf.NewProgramFromID(info.Program)
}

// run runs a program on a frame.
func run(t testing.TB, program *ebpf.Program, frame []byte) (verdict uint32, out []byte) {
	t.Helper()
	options := &ebpf.RunOptions{Data: frame, DataOut: make([]byte, len(frame)+256)}
	verdict, err := program.Run(options)
	must(t, err)
	return verdict, options.DataOut
}
