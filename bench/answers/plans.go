package answers

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"weir.io/weir/internal/api"
	"weir.io/weir/internal/model"
	"weir.io/weir/lab/packet"
)

// Planned is how far a director's plans were from what then happened.
type Planned struct {
	Flows    int     // sent before and after a change, over all changes
	Worst    float64 // percent of a change's flows that moved unplanned, or were planned to and stayed
	Examples []string
}

// planOwner is the owner of the set that is changed.
const planOwner = "plan"

// Changes makes that many random changes of a service. Before each change the director is asked
// what it would move (POST /v1/plan). The same flowsEach new connections are opened before and
// after the change: those that go to another backend have moved.
func (l *Lab) Changes(ctx context.Context, seed uint64, changes, flowsEach int, progress func(done int)) (Planned, error) {
	var result Planned
	r := rand.New(rand.NewPCG(seed, 11))
	var s model.Service
	for n := range changes {
		// One in four goes on with the same service and its history, only in gue: other modes
		// remember connections, which would stay where they were opened first.
		if n == 0 || s.Mode != model.GUE || r.IntN(4) > 0 {
			s = randomPlanned(r, n)
		}
		next := changedRandomly(r, s)
		if err := l.tryChange(ctx, r, s, next, flowsEach, &result); err != nil {
			return result, fmt.Errorf("change %d: %w", n, err)
		}
		s = next
		progress(n + 1)
	}
	return result, nil
}

func (l *Lab) tryChange(ctx context.Context, r *rand.Rand, before, after model.Service, flowsEach int, result *Planned) error {
	if err := l.put(ctx, before, nil); err != nil {
		return err
	}
	if before.Affinity != after.Affinity {
		flowsEach *= 4 // all flows get other slots: chance decides what moves, not the ring
	}
	flows := spread(r, &before, flowsEach)
	was, err := l.open(ctx, flows)
	if err != nil {
		return err
	}
	var planned api.SetChange
	if err := l.put(ctx, after, &planned); err != nil {
		return err
	}
	is, err := l.open(ctx, flows)
	if err != nil {
		return err
	}
	said := 0.0
	for _, m := range planned.Moves {
		if m.Service == after.Name {
			said = 100 * float64(m.Moved) / float64(m.Slots)
		}
	}
	moved := 0
	for i := range was {
		if was[i] != is[i] {
			moved++
		}
	}
	seen := 100 * float64(moved) / float64(len(flows))
	result.Flows += len(flows)
	result.Worst = max(result.Worst, math.Abs(seen-said))
	if math.Abs(seen-said) > 1 && len(result.Examples) < mostExamples {
		result.Examples = append(result.Examples, fmt.Sprintf("%s was to move %.2f %%, and moved %.2f %%: %+v, then %+v", after.Name, said, seen, before.Backends, after.Backends))
	}
	return nil
}

// put makes a service the whole set, and, if planned is wanted, first asks what that changes.
func (l *Lab) put(ctx context.Context, s model.Service, planned *api.SetChange) error {
	text, err := json.Marshal(api.Set{Services: []model.Service{s}})
	if err != nil {
		return fmt.Errorf("write a set: %w", err)
	}
	set := api.SetText{JSON: true, Text: text}
	if planned != nil {
		if *planned, err = l.client.PlanSet(ctx, planOwner, set); err != nil {
			return err
		}
	}
	_, err = l.client.PutSet(ctx, planOwner, set, api.Condition{})
	return err
}

// randomPlanned is a service without history, as its VIP follows from its number.
func randomPlanned(r *rand.Rand, n int) model.Service {
	s := model.Service{Name: fmt.Sprint("p", n), Protocol: model.TCP, Port: model.PortRange{First: 443, Last: 443},
		VIP:      netip.AddrFrom4([4]byte{203, 1, byte(n >> 8), byte(n)}),
		Mode:     []model.Mode{model.L2DSR, model.IPIP, model.GUE, model.NAT}[r.IntN(4)],
		Affinity: model.UsualAffinities[r.IntN(2)], RingSize: []uint32{0, 1021, 2003}[r.IntN(3)]}
	if s.Mode != model.NAT && s.Mode != model.L2DSR && r.IntN(2) == 0 {
		s.VIP = netip.MustParseAddr(fmt.Sprintf("2001:db8:2031::%x", 1+n))
	}
	for range 2 + r.IntN(8) {
		s.Backends = append(s.Backends, randomMember(r, &s))
	}
	c := model.Config{Services: []model.Service{s}}
	c.SetDefaults()
	return c.Services[0]
}

// randomMember is a backend that a service does not have.
func randomMember(r *rand.Rand, s *model.Service) model.Backend {
	for {
		n := r.IntN(200)
		b := model.Backend{Name: fmt.Sprint("b", n), Address: netip.AddrFrom4([4]byte{10, 7, 200, byte(1 + n)}),
			MAC: model.MAC{0x02, 0, 0, 8, 0, byte(n)}, Weight: uint16(1 + r.IntN(4)*50), State: model.Active}
		if !slices.ContainsFunc(s.Backends, func(o model.Backend) bool { return o.Name == b.Name }) {
			return b
		}
	}
}

// changedRandomly is a service after one to three changes.
func changedRandomly(r *rand.Rand, s model.Service) model.Service {
	s.Backends = slices.Clone(s.Backends)
	for range 1 + r.IntN(3) {
		at := r.IntN(len(s.Backends))
		switch b := &s.Backends[at]; r.IntN(8) {
		case 0, 1:
			s.Backends = append(s.Backends, randomMember(r, &s))
		case 2, 3:
			if len(s.Backends) > 1 {
				s.Backends = slices.Delete(s.Backends, at, at+1)
			}
		case 4:
			b.Weight = uint16(1 + r.IntN(5)*50)
		case 5:
			b.State = []model.BackendState{model.Active, model.Draining}[r.IntN(2)]
		case 6:
			s.RingSize = []uint32{1021, 1499, 2003, 4099}[r.IntN(4)]
		case 7:
			if r.IntN(3) == 0 {
				s.Affinity = model.UsualAffinities[r.IntN(2)]
			}
		}
	}
	c := model.Config{Services: []model.Service{s}}
	c.SetDefaults() // new backends have the same defaults as the others
	return c.Services[0]
}

// spread is flows of random clients, one for each of as many equal parts of all hashes: then the
// share that moves is known more exactly than with random flows.
func spread(r *rand.Rand, s *model.Service, n int) []model.Flow {
	flows, salt := make([]model.Flow, n), s.ID().Salt()
	for missing := n; missing > 0; {
		f := model.Flow{Destination: s.VIP, DestinationPort: s.Port.First, Protocol: uint8(s.Protocol), SourcePort: uint16(1024 + r.IntN(60000))}
		if s.VIP.Is4() {
			f.Source = netip.AddrFrom4([4]byte{100, 64 + byte(r.IntN(64)), byte(r.Uint32()), byte(1 + r.IntN(250))})
		} else {
			f.Source = netip.AddrFrom16([16]byte{0x20, 0x01, 0x0d, 0xb8, 0, 9, 14: byte(r.Uint32()), 15: byte(r.Uint32()), 13: byte(r.Uint32()), 12: byte(r.Uint32())})
		}
		at := &flows[(f.Hash(salt, s.Affinity)>>32)*uint64(n)>>32]
		if !at.Source.IsValid() {
			*at = f
			missing--
		}
	}
	return flows
}

// atOnce is how many packets are under way: a link's ring has 256 places.
const atOnce = 64

// sendAgain is how long to wait for a packet before sending it again.
const sendAgain = 200 * time.Millisecond

// open sends each flow's SYN, and returns the MAC addresses of the backends that got them.
func (l *Lab) open(ctx context.Context, flows []model.Flow) ([][6]byte, error) {
	to := make([][6]byte, len(flows))
	from, at := l.sides[clientSide], l.sides[backendSide]
	for first := 0; first < len(flows); first += atOnce {
		last := min(first+atOnce, len(flows))
		missing, sent := last-first, time.Time{}
		for deadline := time.Now().Add(15 * time.Second); missing > 0; {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			if time.Now().After(deadline) {
				return nil, fmt.Errorf("%d of %d connections come to no backend, the first of %+v", missing, last-first, flows[first])
			}
			if time.Since(sent) > sendAgain {
				for i := first; i < last; i++ {
					if to[i] == [6]byte{} {
						if err := from.send(l.synOf(&flows[i], uint32(i))); err != nil {
							return nil, err
						}
					}
				}
				sent = time.Now()
			}
			frame, err := at.receive()
			if err != nil {
				return nil, err
			}
			if len(frame) < 60 {
				continue
			}
			// In every mode the payload says which packet it is.
			if i := binary.BigEndian.Uint32(frame[len(frame)-4:]); i >= uint32(first) && i < uint32(last) && to[i] == [6]byte{} {
				to[i] = [6]byte(frame)
				missing--
			}
		}
	}
	return to, nil
}

func (l *Lab) synOf(f *model.Flow, number uint32) []byte {
	w := l.sides[clientSide]
	return packet.Build(packet.EthernetHeader{Dst: [6]byte(w.director), Src: [6]byte(w.own)}, networkOf(f, 0),
		packet.TCPHeader{Src: f.SourcePort, Dst: f.DestinationPort, Seq: number, Flags: packet.SYN, Window: 1024},
		packet.Bytes(binary.BigEndian.AppendUint32([]byte("plan"), number)))
}
