package main

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"weir.io/weir/internal/api"
	"weir.io/weir/internal/config"
	"weir.io/weir/internal/model"
)

// wanted is a set as it is sent.
type wanted struct {
	Services []model.Service `json:"services"`
}

// randomSet has all kinds of services. Some are valid together, and some are not.
func randomSet(r *rand.Rand) wanted {
	one := func(list ...string) string { return list[r.IntN(len(list))] }
	w := wanted{Services: []model.Service{}}
	for i := range r.IntN(5) {
		s := model.Service{
			Name: fmt.Sprintf("%s-%d", one("web", "dns", "ünï", "日本", "a\"b\\c", "<&>", "y:z#{}"), i),
			VIP:  netip.AddrFrom4([4]byte{203, 0, 113, byte(10 + r.IntN(100))}), Protocol: model.TCP, Mode: model.Mode(r.IntN(4)),
			Policy: model.Policy(r.IntN(5)), Affinity: model.Affinity(r.IntN(2)), SNAT: r.IntN(8) == 0,
		}
		if r.IntN(3) == 0 {
			s.VIP = netip.MustParseAddr(fmt.Sprintf("2001:db8:1::%x", 1+r.IntN(200)))
		}
		if r.IntN(2) == 0 {
			s.Protocol = model.UDP
		}
		if first := uint16(r.IntN(9000)); first > 0 {
			s.Port = model.PortRange{First: first, Last: first + uint16(r.IntN(2)*r.IntN(300))}
		}
		if r.IntN(4) == 0 {
			s.Segment = model.Segment{Kind: model.SegmentVLAN, ID: uint32(1 + r.IntN(4094))}
		}
		if r.IntN(3) == 0 {
			s.Drain = model.Duration(time.Duration(1+r.IntN(5000)) * time.Millisecond)
		}
		if r.IntN(3) == 0 {
			least := uint32(r.IntN(3))
			s.MinHealthy, s.RingSize = &least, []uint32{1021, 65537, 1024}[r.IntN(3)]
		}
		if r.IntN(4) == 0 {
			s.Health = &model.HealthCheck{Kind: model.CheckKind(one("tcp", "http", "none", "dns")), Interval: model.Duration(time.Minute)}
		}
		if s.Protocol == model.UDP && r.IntN(2) == 0 {
			s.QUIC = []model.QUICConfig{{ID: uint8(r.IntN(7)), NonceLength: uint8(4 + r.IntN(12)), Key: model.QUICKey{byte(r.IntN(3)), 7}}}
		}
		for j := range r.IntN(6) {
			b := model.NewBackend()
			b.Address = netip.AddrFrom4([4]byte{10, 0, 0, byte(2 + j)})
			b.Weight, b.State = uint16(r.IntN(300)), []model.BackendState{model.Active, model.Active, model.Draining, model.Down}[r.IntN(4)]
			if r.IntN(2) == 0 {
				b.Name = fmt.Sprintf("backend-%d", j)
			}
			if s.Mode == model.NAT && r.IntN(2) == 0 {
				b.Port = uint16(1 + r.IntN(65535))
			}
			if r.IntN(5) == 0 {
				mode := model.Mode(r.IntN(4))
				b.Mode, b.MTU = &mode, uint16(1280+r.IntN(200))
			}
			if len(s.QUIC) > 0 {
				b.ServerID = model.SameServerID(model.ServerID([]byte{byte(j), byte(r.IntN(256))}))
			}
			s.Backends = append(s.Backends, b)
		}
		w.Services = append(w.Services, s)
	}
	return w
}

// GET returns what was put, byte for byte once defaults are filled in and keys hidden. Putting what
// GET returned changes nothing, and neither does a refused set.
func TestPutThenGet(t *testing.T) {
	const attempts, enough = 400, 60
	h := newHost(t)
	h.configure("coalesce: 1ms\ndirector: {interfaces: [eth0], store: {directory: "+h.beside("state")+"}}", "mine")
	p := h.start("director runs")
	defer p.stop()
	client := api.NewClient(h.socket)
	r := rand.New(rand.NewPCG(7, 7))
	put, keys := 0, 0
	before := "" // as GET returns it
	for n := 0; n < attempts && put < enough; n++ {
		set := randomSet(r)
		text, err := json.Marshal(set)
		if err != nil {
			t.Fatal(err)
		}
		change, err := client.PutSet(t.Context(), "cli", api.SetText{JSON: true, Text: text}, api.Condition{})
		valid, invalid := config.ParseSet("set", text)
		if err == nil && invalid != nil {
			t.Fatalf("a set is put in which something is wrong: %v\n%s", invalid, text)
		}
		if err == nil {
			put++
			for _, s := range valid {
				keys += len(s.QUIC)
			}
			want, err := json.Marshal(wanted{model.HideKeys(valid)})
			if err != nil {
				t.Fatal(err)
			}
			before = string(want)
		}
		if before == "" {
			continue
		}
		got, err := client.Set(t.Context(), "cli")
		if err != nil {
			t.Fatal(err)
		}
		again, err := json.Marshal(wanted{got.Services})
		if err != nil {
			t.Fatal(err)
		}
		if string(again) != before || change.Tag != "" && change.Tag != got.Tag {
			t.Fatalf("there is, with the tag %s after a change to %s,\n%s\nwant\n%s\nof\n%s", got.Tag, change.Tag, again, before, text)
		}
		change, err = client.PutSet(t.Context(), "cli", api.SetText{JSON: true, Text: again}, api.Condition{Tags: []string{got.Tag}})
		if err != nil || change.Tag != got.Tag || len(slices.Concat(change.Added, change.Changed, change.Removed)) > 0 {
			t.Fatalf("what was got changes something when it is put: %+v, %v\n%s", change, err, again)
		}
	}
	if put < enough || keys == 0 {
		t.Errorf("of %d sets %d could be put, with %d keys: too few to say anything", attempts, put, keys)
	}
}
