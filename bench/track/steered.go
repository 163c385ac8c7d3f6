package track

import (
	"context"
	"errors"
	"fmt"
	"time"

	"weir.io/weir/internal/api"
	"weir.io/weir/internal/model"
	"weir.io/weir/lab/nic"
	"weir.io/weir/lab/process"
	"weir.io/weir/lab/version"
)

// startSteering starts a director whose interface has a NIC with a flow table.
func (t *Track) startSteering(ctx context.Context) error {
	binary, err := version.WithNICs(ctx)
	if err != nil {
		return err
	}
	queues := t.steeredQueues()
	if t.card, err = nic.Emulate(t.in, t.up.A, uint32(queues.Last)+1, t.cardRoom()); err != nil {
		return err
	}
	t.closers = append(t.closers, t.card.Close)
	if t.director, err = process.StartDirectorAs(t.balancer, binary, t.config(t.set)); err != nil {
		return err
	}
	return t.director.Forwards(ctx)
}

// Card is the NIC of a balancer whose flows are steered.
func (t *Track) Card() *nic.Emulated { return t.card }

// ByRule is how many packets the director has sent by their flows' rules.
func (t *Track) ByRule(ctx context.Context) (uint64, error) {
	status, err := api.NewClient(t.director.Socket).Status(ctx)
	if err != nil || status.Steering == nil {
		return 0, errors.Join(err, errNotSteering)
	}
	return status.Steering.Packets, nil
}

var errNotSteering = errors.New("the director steers no flows")

// routedQueues is how many receive queues a balancer has behind a router.
const routedQueues = 4

// RoutedQueues are the queues of [Options.Routed]: queue 0 has packets without a rule, and the others have flows with rules.
const RoutedQueues uint32 = routedQueues

func (t *Track) steeredQueues() model.QueueRange {
	if t.Routed {
		return model.QueueRange{First: 1, Last: routedQueues - 1}
	}
	return model.QueueRange{First: uint16(t.SourceCPU), Last: uint16(t.SourceCPU)}
}

// cardRoom is how many rules the NIC has room for: behind a router, for as many of others.
func (t *Track) cardRoom() int {
	if t.Routed {
		return 2 * t.Steered
	}
	return t.Steered
}

const (
	// steerPatience is how long a director may take to find the flows. It looks once a second.
	steerPatience = time.Minute
	// placeless is which part of flows finds no place in the director's table, see steeredPairs.
	placeless = 0.01
)

// steer sends until the director has given rules to the flows, or to as many as there are rules. Then its
// process ends, and what is measured has these; not behind a router, where rules are to change.
func (t *Track) steer(ctx context.Context) error {
	want := int((1 - placeless) * float64(min(t.Steered, t.Traffic.Flows)))
	client := api.NewClient(t.director.Socket)
	for deadline := time.Now().Add(steerPatience); ; {
		if _, err := t.main.Measure(time.Second / 2); err != nil {
			return err
		}
		status, err := client.Status(ctx)
		if err != nil {
			return err
		}
		if s := status.Steering; s != nil && len(s.Interfaces) == 1 && s.Interfaces[0].Rules >= want {
			if t.Routed {
				return nil
			}
			return t.StopDirector()
		} else if time.Now().After(deadline) {
			return errors.Join(fmt.Errorf("want rules for %d flows, and the director has %+v", want, s), t.StopDirector())
		}
	}
}
