package nic

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"syscall"
	"time"

	"github.com/cilium/ebpf"

	"weir.io/weir/internal/device"
)

// Flows are the flows that the card has rules for.
func (e *Emulated) Flows() ([]device.RuleFlow, error) {
	keys, err := e.keys()
	flows := make([]device.RuleFlow, len(keys))
	for i := range keys {
		flows[i] = flowOf(&keys[i])
	}
	return flows, err
}

func (e *Emulated) keys() (keys []nicCardFlow, err error) {
	var flow nicCardFlow
	var rule nicCardRule
	entries := e.objects.CardRules.Iterate()
	for entries.Next(&flow, &rule) {
		keys = append(keys, flow)
	}
	if errors.Is(entries.Err(), ebpf.ErrIterationAborted) { // others change the rules meanwhile
		return keys, nil
	}
	return keys, entries.Err()
}

const (
	disturbTick = time.Millisecond
	// learnEvery is how often a disturber looks which flows have rules.
	learnEvery = 250 * time.Millisecond
)

// Disturb changes rules that often per second until the context ends, and returns how many it changed. Of the
// flows that have or had a rule it takes one at random, and deletes its rule, or gives it one to any of the
// queues, below `queues`. So flows come by queues of other services, too, and by those that have none.
func (e *Emulated) Disturb(ctx context.Context, perSecond int, queues uint32, seed uint64) (changed int, err error) {
	rng := rand.New(rand.NewPCG(seed, 0))
	ticks := time.NewTicker(disturbTick)
	defer ticks.Stop()
	known := map[nicCardFlow]uint32{} // by flow: the location of the rules that it gets here
	var flows []nicCardFlow
	var learned time.Time
	began, done := time.Now(), 0
	for {
		select {
		case <-ctx.Done():
			return changed, nil
		case <-ticks.C:
		}
		now := time.Now()
		if now.Sub(learned) >= learnEvery {
			learned = now
			keys, err := e.keys()
			if err != nil {
				return changed, fmt.Errorf("read the card's rules: %w", err)
			}
			for _, key := range keys {
				if _, is := known[key]; !is {
					// No location that weir would take: two rules must not have the same.
					known[key] = e.objects.CardRules.MaxEntries() + uint32(len(flows))
					flows = append(flows, key)
				}
			}
		}
		if len(flows) == 0 {
			began = now // nothing can be changed yet
			continue
		}
		for due := int(now.Sub(began).Seconds() * float64(perSecond)); done < due; {
			flow := flows[rng.IntN(len(flows))]
			rule := nicCardRule{Queue: rng.Uint32N(queues), Location: known[flow]}
			has := e.objects.CardRules.Lookup(flow, &nicCardRule{}) == nil
			if has && rng.IntN(2) == 0 {
				err = e.objects.CardRules.Delete(flow)
			} else {
				err = e.objects.CardRules.Put(flow, rule)
			}
			switch {
			case err == nil:
				changed++
				done++
			case !errors.Is(err, ebpf.ErrKeyNotExist) && !errors.Is(err, syscall.E2BIG): // weir was quicker, or the card is full
				return changed, fmt.Errorf("change the rule of %v: %w", flowOf(&flow).Source, err)
			}
		}
	}
}
