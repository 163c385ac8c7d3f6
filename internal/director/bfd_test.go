package director

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"weir.io/weir/internal/bfd"
	"weir.io/weir/internal/model"
)

// The BFD process is told of sessions, and so starts, when the program that the sessions stand for
// is attached, and not before.
func TestBFDBeginsWithTheProgram(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "bfd.sock")
	synctest.Test(t, func(t *testing.T) {
		started := 0
		start := func() (<-chan error, error) {
			started++
			return nil, errors.New("this is a test")
		}
		k := &bfdSupervisor{Supervisor: bfd.NewSupervisor(socket, start, func(model.BFDStatus) {}, slog.New(slog.DiscardHandler))}
		ctx, cancel := context.WithCancel(t.Context())
		go k.Run(ctx)
		c := model.Config{BGP: model.BGP{Neighbors: []model.BGPNeighbor{{Address: netip.MustParseAddr("10.0.0.1"), BFD: &model.BGPNeighborBFD{}}}}}
		for range 2 { // the engine may set again meanwhile, and the file may change
			k.configure(&c)
			k.beforeSet([]string{"eth0"})
			k.afterSet([]string{"eth0", "eth1"})
		}
		time.Sleep(time.Minute) // fake time
		synctest.Wait()
		if started > 0 {
			t.Error("it begins before the program is attached")
		}
		k.admit()
		synctest.Wait()
		if started != 1 {
			t.Errorf("when the program is attached, it begins %d times, want once", started)
		}
		cancel()
	})
}

// A process that answers, of a version that knows no VRFs, has no session in one, whatever it says about
// the same address: that is a problem of the session in the VRF alone.
func TestProcessWithoutVRFs(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "bfd.sock")
	router := netip.MustParseAddr("10.0.0.1")
	for _, knows := range []bool{false, true} {
		supervisor := bfd.NewSupervisor(socket, nil, func(model.BFDStatus) {}, slog.New(slog.DiscardHandler))
		process := model.BFDStatus{Version: "0.1.0", PID: 8, VRFs: knows, Sessions: []model.BFDSessionStatus{{Neighbor: router, State: "up", Discriminator: 7}}}
		if knows {
			process.Sessions = append(process.Sessions, model.BFDSessionStatus{Neighbor: router, VRF: "red", State: "up", Discriminator: 8})
		}
		k := &bfdSupervisor{Supervisor: supervisor}
		k.configure(&model.Config{BGP: model.BGP{Neighbors: []model.BGPNeighbor{
			{Address: router, BFD: &model.BGPNeighborBFD{}}, {Address: router, VRF: "red", BFD: &model.BGPNeighborBFD{}}}}})
		got := k.sessionsOf(&process, nil)
		if len(got) != 2 || got[0].State != "up" || got[0].Problem != "" || got[1].Name() != "10.0.0.1%red" {
			t.Fatalf("the sessions are %+v", got)
		}
		const want = "the weir bfd that runs (version 0.1.0, process 8) does not know vrf: end it by SIGTERM, and weir run starts its own"
		if knows && got[1].Problem != "" || !knows && (got[1].Problem != want || got[1].State != "") {
			t.Errorf("of a process that knows VRFs: %t: the session in one is %+v", knows, got[1])
		}
	}
}
