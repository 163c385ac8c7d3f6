package program

import (
	"context"
	"errors"
	"fmt"
	"time"

	"weir.io/weir/bench/inside"
	"weir.io/weir/bench/track"
	"weir.io/weir/internal/api"
	"weir.io/weir/internal/datapath/abi"
	"weir.io/weir/internal/model"
	"weir.io/weir/lab/netlab"
	"weir.io/weir/lab/nic"
	"weir.io/weir/lab/process"
	"weir.io/weir/lab/traffic"
)

// SteeredWays are the ways of weir whose flows NICs may steer, as Bench measures them.
var SteeredWays = []track.Subject{
	track.Weir(model.L2DSR, false, false), track.Weir(model.IPIP, false, false), track.Weir(model.NAT, false, false),
}

const (
	steering = "director_steering"
	// steeredQueue is also the CPU that sends: so frames of XDP come by it.
	steeredQueue = 1
	// steerPatience is how long a director may take to give each flow a rule.
	steerPatience = time.Minute
)

// Steered measures packets of flows that have rules, beside the same where they have none.
type Steered struct{ *Versions }

// putBackMACs restores the MAC addresses alone.
var putBackMACs = Subject{Way: "put back, MAC addresses"}

// Subject names of a [Steered].
const (
	ByRule = "by rule"
	ByRing = "by ring"
)

// NewSteered runs a director whose NIC steers a flow of each way, and loads its programs: the one of hosts
// without steering, too, with the same maps.
func NewSteered(ctx context.Context, lab *netlab.Lab, binary string, object []byte, ipv6 bool) (_ *Steered, err error) {
	v := &Versions{}
	defer func() {
		if err != nil {
			err = errors.Join(err, v.Close())
		}
	}()
	cable, err := connect(lab, "steering-", ipv6, steeredQueue+len(SteeredWays))
	if err != nil {
		return nil, err
	}
	way := waysTraffic(ipv6)
	way.VIPs, way.Flows = len(SteeredWays), len(SteeredWays)
	card, err := nic.Emulate(cable.B, cable.A, steeredQueue+uint32(len(SteeredWays)), len(SteeredWays))
	if err != nil {
		return nil, err
	}
	v.closers = append(v.closers, card.Close)
	c := config(way, SteeredWays)
	// Each service has a queue. All of their frames come by the first, and are tested as of their own.
	c.Director.Steering = model.Steering{Queues: model.QueueRange{First: steeredQueue, Last: steeredQueue + uint16(len(SteeredWays)) - 1}, Flows: 64, Packets: 1}
	director, err := process.StartDirectorAs(cable.B.Host, binary, c)
	if err != nil {
		return nil, err
	}
	if err := director.Forwards(ctx); err != nil {
		return nil, errors.Join(err, director.Stop())
	}
	queues, err := steer(ctx, cable, way, director)
	if err = errors.Join(err, director.Stop()); err != nil {
		return nil, err
	}
	maps, err := inside.OpenMaps(director.Pin)
	if err != nil {
		return nil, err
	}
	v.closers = append(v.closers, maps.Close)
	packets, err := frames(cable, way)
	if err != nil {
		return nil, err
	}
	for n, way := range SteeredWays {
		for _, r := range []*running{
			{Version: Version{Name: ByRing, Object: object}, port: cable.B, maps: maps},
			{Version: Version{Name: ByRule, Object: object}, port: cable.B, maps: maps, entry: steering, queue: queues[way.Name]},
		} {
			v.directors = append(v.directors, r)
			v.turns = append(v.turns, &turn{subject: Subject{r.Name, way.Name, false}, running: r, frame: packets[n], plain: way.Mode == model.L2DSR})
		}
	}
	v.comparisons(v.turns[0])
	v.turns = append(v.turns, &turn{subject: putBackMACs, running: v.turns[len(v.turns)-1].running, frame: packets[0], settings: settings{macs: 1}})
	before, err := byTable(maps)
	if err != nil {
		return nil, err
	}
	if err := v.prepare(); err != nil {
		return nil, err
	}
	after, err := byTable(maps)
	if err == nil && after-before < uint64(len(SteeredWays))*leastByTable {
		err = fmt.Errorf("%d packets have gone by the table of steered flows", after-before)
	}
	return &Steered{v}, err
}

// leastByTable is how many packets of a way go by the table while the programs are prepared, of more than 1,000.
const leastByTable = 900

// byTable is how many packets have gone by the table of steered flows.
func byTable(maps inside.Maps) (sum uint64, err error) {
	var place uint32
	var queue abi.SteeredQueue
	entries := maps.Named("steered_queues").Iterate()
	for entries.Next(&place, &queue) {
		sum += queue.Packets - queue.Usual + queue.Followed
	}
	return sum, entries.Err()
}

// steer sends packets until each flow has a rule, and returns the queues by the ways' names.
func steer(ctx context.Context, cable *netlab.Link, way traffic.Traffic, director *process.Weir) (map[string]uint32, error) {
	source, err := traffic.NewSource(cable.A, cable.B.MAC, way, steeredQueue)
	if err != nil {
		return nil, err
	}
	defer source.Close()
	client := api.NewClient(director.Socket)
	for deadline := time.Now().Add(steerPatience); ; {
		if _, err := source.Send(1 << 18); err != nil {
			return nil, err
		}
		status, err := client.Status(ctx)
		if err != nil {
			return nil, err
		}
		queues := map[string]uint32{}
		if s := status.Steering; s != nil && s.Flows == len(SteeredWays) {
			for _, q := range s.Interfaces[0].Queues {
				for n, w := range SteeredWays {
					if q.Service == w.Service(way, n, 0, 0).Name {
						queues[w.Name] = q.Queue
					}
				}
			}
			return queues, nil
		}
		if time.Now().After(deadline) {
			return nil, fmt.Errorf("%d flows are to have rules, and the director says %+v", len(SteeredWays), status.Steering)
		}
	}
}

// Measure returns how many nanoseconds a packet takes, by way and by how its backend is found. What it takes to
// call a program and to restore its packet is subtracted.
func (s *Steered) Measure(ctx context.Context, passes, repeats int) (map[Subject]float64, error) {
	least, err := s.Least(ctx, passes, repeats)
	if err != nil {
		return nil, err
	}
	costs := map[Subject]float64{}
	for _, way := range SteeredWays {
		back := putBack[1]
		switch {
		case way.Tunnels():
			back = putBack[0]
		case way.Mode == model.L2DSR:
			back = putBackMACs
		}
		for _, how := range []string{ByRing, ByRule} {
			costs[Subject{Version: how, Way: way.Name}] = least[Subject{Version: how, Way: way.Name}] - least[back]
		}
	}
	return costs, nil
}
