package track

import (
	"context"
	"errors"
	"fmt"
	"time"

	"weir.io/weir/internal/api"
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
	card, err := nic.Emulate(t.in, t.from.A, uint32(t.SourceCPU+1), t.Steered)
	if err != nil {
		return err
	}
	t.closers = append(t.closers, card.Close)
	if t.director, err = process.StartDirectorAs(t.balancer, binary, t.config(t.set)); err != nil {
		return err
	}
	return t.director.Forwards(ctx)
}

const (
	// steerPatience is how long a director may take to find the flows. It looks once a second.
	steerPatience = time.Minute
	// placeless is which part of flows finds no place in the director's table, see steeredPairs.
	placeless = 0.01
)

// steer sends until the director has given rules to the flows, or to as many as there are rules, and ends its
// process: what is measured then has these.
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
			return t.StopDirector()
		} else if time.Now().After(deadline) {
			return errors.Join(fmt.Errorf("want rules for %d flows, and the director has %+v", want, s), t.StopDirector())
		}
	}
}
