package main

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"weir.io/weir/internal/api"
	"weir.io/weir/internal/model"
	"weir.io/weir/lab/nic"
)

const (
	// cardQueues are the queues of a director's NIC. Queues 2, 3 and 4 are for flows with rules, more than
	// there are services that may be steered.
	cardQueues = 5
	cardRoom   = 1000
	// steeredFlows is how many flows may have rules, fewer than there are: so directors change them, too.
	steeredFlows = 500
	// disturbances is how many rules of a NIC something else changes per second.
	disturbances = 1000
)

// steering is what a director is told.
func steering() model.Steering {
	return model.Steering{Queues: model.QueueRange{First: 2, Last: cardQueues - 1}, Interfaces: []string{"eth0"}, Flows: steeredFlows, Packets: 1}
}

// steers says whether NICs steer flows in this run.
func (o *options) steers() bool { return o.steer && !o.mode.dnat }

// cards are the directors' NICs.
type cards struct {
	list []*nic.Emulated

	mu      sync.Mutex
	errs    []error
	changed int
	by      map[string]uint64 // packets by rules, by the director that said so last
	most    int               // rules of one director, as it said
	packets uint64            // by rules, of processes that have begun anew since
}

// steered is what became of steering.
type steered struct {
	Packets uint64 `json:"packets"` // that directors sent by rules
	Flows   int    `json:"flows"`   // flows that one director had rules for at the same time, the most
	Changed int    `json:"changed"` // rules that something else changed
}

// newCards gives each director's uplink a NIC.
func newCards(t *topology) (*cards, error) {
	c := &cards{by: map[string]uint64{}}
	for _, d := range t.directors {
		card, err := nic.Emulate(d.up.B, d.up.A, cardQueues, cardRoom)
		if err != nil {
			return nil, errors.Join(err, c.close())
		}
		c.list = append(c.list, card)
	}
	return c, nil
}

func (c *cards) close() error {
	var errs []error
	for _, card := range c.list {
		errs = append(errs, card.Close())
	}
	return errors.Join(errs...)
}

// disturb changes rules at random until the context ends.
func (c *cards) disturb(ctx context.Context, seed uint64) {
	var all sync.WaitGroup
	for i, card := range c.list {
		all.Go(func() {
			n, err := card.Disturb(ctx, disturbances, cardQueues, seed+uint64(i)<<32)
			c.mu.Lock()
			defer c.mu.Unlock()
			c.changed += n
			c.errs = append(c.errs, err)
		})
	}
	all.Wait()
}

// follow asks directors how much they steer, until the context ends.
func (c *cards) follow(ctx context.Context, g *group) {
	for sleep(ctx, samplePause) {
		for host, socket := range g.directorSockets() {
			// A director that is being ended does not answer.
			status, err := api.NewClient(socket).Status(ctx)
			if err != nil || status.Steering == nil {
				continue
			}
			c.mu.Lock()
			if status.Steering.Packets < c.by[host] { // its maps are new
				c.packets += c.by[host]
			}
			c.by[host], c.most = status.Steering.Packets, max(c.most, status.Steering.Flows)
			c.mu.Unlock()
		}
	}
}

var errNothingSteered = errors.New("no packet went by a rule, or no rule was changed")

// failed says what went wrong with the cards.
func (c *cards) failed() error {
	err := errors.Join(c.errs...)
	if total := c.total(); err == nil && (total.Packets == 0 || total.Changed == 0) {
		err = fmt.Errorf("%w: %+v", errNothingSteered, *total)
	}
	return err
}

// total is what became of steering; nil: there are no cards.
func (c *cards) total() *steered {
	if c == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	total := steered{Packets: c.packets, Flows: c.most, Changed: c.changed}
	for _, packets := range c.by {
		total.Packets += packets
	}
	return &total
}
