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
