package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"weir.io/weir/internal/bfd"
	"weir.io/weir/internal/model"
)

// serveFakeBFD answers as the BFD process of the transcripts does.
func serveFakeBFD(t *testing.T) (socket string) {
	t.Helper()
	socket = filepath.Join(t.TempDir(), "bfd.sock")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	answer, err := json.Marshal(fakeBFD())
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return // closed
			}
			if _, err := bufio.NewReader(conn).ReadBytes('\n'); err == nil {
				_, _ = conn.Write(append(answer, '\n'))
			}
			conn.Close()
		}
	}()
	return socket
}

func fakeBFD() model.BFDStatus {
	since, ms := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), model.Duration(time.Millisecond)
	return model.BFDStatus{
		Version: "v1.2.3", PID: 8, Started: since, Deadline: since.Add(time.Hour), Realtime: true, Late: ms,
		Sessions: []model.BFDSessionStatus{
			{Neighbor: netip.MustParseAddr("10.0.0.1"), Source: netip.MustParseAddr("10.0.0.2"), State: "up", Since: since, Diagnostic: "none",
				RemoteState: "up", RemoteDiagnostic: "none", Interval: 50 * ms, Detection: 150 * ms, Discriminator: 7, Remote: 9,
				Changes: 5, Losses: 1, LastLoss: "detection-expired", Sent: 100, Received: 99},
			{Neighbor: netip.MustParseAddr("2001:db8::1"), Multihop: true, State: "down", Since: since, Diagnostic: "forwarding-reset",
				RemoteState: "down", RemoteDiagnostic: "neighbor-down", Interval: 1000 * ms, Discriminator: 8, Held: "forwarding-reset",
				Problem: "send: network is unreachable"},
		},
		Discards: []model.Tallied{{Name: "length"}, {Name: "ttl", Count: 3}},
	}
}

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
		k := &bfdKeeper{Keeper: bfd.NewKeeper(socket, start, func(model.BFDStatus) {}, slog.New(slog.DiscardHandler))}
		ctx, cancel := context.WithCancel(t.Context())
		go k.Run(ctx)
		c := model.Config{BGP: model.BGP{Neighbors: []model.BGPNeighbor{{Address: netip.MustParseAddr("10.0.0.1"), BFD: &model.BGPNeighborBFD{}}}}}
		for range 2 { // the engine may set again meanwhile, and the file may change
			k.want(&c)
			k.before([]string{"eth0"})
			k.after([]string{"eth0", "eth1"})
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
