package datapath

import (
	"bytes"
	"net/netip"
	"slices"
	"testing"

	"weir.io/weir/internal/model"
	"weir.io/weir/quiclb"
)

// quicStage is a service's configurations and server IDs at one time.
type quicStage struct {
	name    string
	configs []model.QUICConfig
	ids     []model.ServerIDs // of the backends
	restart bool
}

// A key is replaced as docs/reference/configuration.md says: while directors have both
// configurations, connection IDs of both name their backend; those of one that is gone
// go by the ring, and so do old server IDs. A restart changes nothing.
func TestQUICRotation(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	addNeighbors(t, 3)
	before := model.QUICConfig{ID: 0, NonceLength: 13, Key: model.QUICKey{1}}
	after := model.QUICConfig{ID: 1, NonceLength: 8, Key: model.QUICKey{2}}
	ids := []model.ServerIDs{{0: "aaa", 1: "AAAA"}, {0: "bbb", 1: "BBBB"}, {0: "ccc", 1: "CCCC"}}
	others := []model.ServerIDs{{0: "aaa", 1: "AAAA"}, {0: "bbb", 1: "BBBB"}, {0: "ddd", 1: "DDDD"}}
	d := openTest(t, smallLimits)
	table := tableOf(1, 3, 0)
	for _, stage := range []quicStage{
		{name: "no configuration", ids: ids},
		{name: "old key", configs: []model.QUICConfig{before}, ids: ids},
		{name: "both keys", configs: []model.QUICConfig{before, after}, ids: ids},
		{name: "both keys, restarted", configs: []model.QUICConfig{before, after}, ids: ids, restart: true},
		{name: "new key", configs: []model.QUICConfig{after}, ids: ids},
		{name: "other server ID", configs: []model.QUICConfig{after}, ids: others},
	} {
		if stage.restart {
			must(t, d.Close())
			d = openTest(t, smallLimits)
		}
		table.Services = slices.Clone(table.Services) // the director keeps what it was given
		s := &table.Services[0]
		s.Protocol, s.QUIC = model.UDP, stage.configs
		s.Backends = slices.Clone(s.Backends)
		for i := range s.Backends {
			s.Backends[i].ServerID = stage.ids[i]
		}
		must(t, d.Set(table))
		for _, c := range []model.QUICConfig{before, after} {
			for _, id := range []string{ids[0][c.ID].String(), ids[2][c.ID].String(), others[2][c.ID].String()} {
				stage.check(t, d, s, c, string(bytesOf(t, id)))
			}
		}
	}
}

// check sends packets that have a server ID in the way of a configuration.
func (stage quicStage) check(t *testing.T, d *Datapath, s *model.TableService, c model.QUICConfig, id string) {
	t.Helper()
	codec, err := quiclb.New(quiclb.Config{ID: c.ID, ServerIDLength: len(id), NonceLength: int(c.NonceLength), Key: c.Key[:]})
	must(t, err)
	cid, err := codec.Encode([]byte(id), bytes.Repeat([]byte{7}, int(c.NonceLength)))
	must(t, err)
	named := -1
	for _, declared := range stage.configs {
		for i, b := range stage.ids {
			if declared == c && string(b[c.ID]) == id {
				named = i
			}
		}
	}
	client := netip.AddrFrom4([4]byte{192, 0, 2, 9})
	for port := range uint16(12) {
		flow := model.Flow{Source: client, Destination: s.VIP, SourcePort: 40000 + port, DestinationPort: 80, Protocol: uint8(model.UDP)}
		want := int(s.Ring.Slots[s.Ring.SlotOf(flow.Hash(s.Salt, s.Affinity))].Owner)
		if named >= 0 {
			want = named
		}
		frame := build(ip(client, s.VIP), l4(model.UDP, 40000+port, 80), quicPayload(false, cid))
		if got := destination(t, d, frame); got != neighborMAC(s.Backends[want].Address) {
			t.Errorf("%s: configuration %d, server ID %q, port %d: goes to %x, want backend %d, %x",
				stage.name, c.ID, id, 40000+port, got, want, neighborMAC(s.Backends[want].Address))
		}
	}
}
