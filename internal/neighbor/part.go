package neighbor

import (
	"context"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"weir.io/weir/internal/model"
	"weir.io/weir/internal/retry"
)

// part is a director's part in its group.
type part struct {
	*Speaker
	self     netip.Addr
	registry Registry
	stop     context.CancelFunc
	running  sync.WaitGroup

	giving map[model.VIP]bool // VIPs that were given up, until the group confirms it
	busy   atomic.Bool        // a write is under way
	pauses retry.Backoff      // after failed writes; owned by the writer
}

// The bounds of the pause after a failed write.
const (
	firstPause = 50 * time.Millisecond
	lastPause  = time.Second
)

// writePatience is how long one attempt to write may take.
const writePatience = 2 * time.Second

// leavePatience is how long the end of a process may wait for etcd: without its answer the other
// directors wait for the end of the lease.
const leavePatience = 2 * time.Second

func (t *turn) newPart(ctx context.Context, self netip.Addr, lease time.Duration) *part {
	ctx, cancel := context.WithCancel(ctx)
	p := &part{Speaker: t.Speaker, self: self, stop: cancel, giving: map[model.VIP]bool{},
		pauses: retry.Backoff{First: firstPause, Last: lastPause}}
	p.guard.allow(0)
	p.registry = t.join(self, lease, p.notify)
	p.running.Go(func() { p.renew(ctx, lease) })
	return p
}

// margin is how long before the end of its lease a director stops answering: a thread may have to
// wait for a CPU between looking at the clock and sending.
func margin(lease time.Duration) time.Duration { return max(lease/6, minMargin) }

const minMargin = 300 * time.Millisecond

// renew keeps the lease, several times in its length. An attempt is short: the etcd member that is
// asked may be gone without notice, and the next attempt asks another one.
func (p *part) renew(ctx context.Context, lease time.Duration) {
	every, patience := lease/5, max(lease/10, minPatience)
	for ctx.Err() == nil {
		began := p.guard.clock()
		attempt, cancel := context.WithTimeout(ctx, patience)
		left, err := p.registry.Renew(attempt)
		cancel()
		pause := every
		if err != nil {
			pause = firstPause
			p.note(ctx, err.Error())
		} else {
			p.note(ctx, "")
			if p.guard.allow(began + left - margin(left)) {
				p.notify()
			}
		}
		retry.Sleep(ctx, pause-min(pause, p.guard.clock()-began))
		retry.Sleep(ctx, firstPause)
	}
}

// note remembers what is wrong with the lease. Each problem is logged once.
func (p *part) note(ctx context.Context, problem string) {
	p.Speaker.mu.Lock()
	before := p.problem
	p.problem = problem
	p.Speaker.mu.Unlock()
	switch {
	case ctx.Err() != nil || problem == before:
	case problem != "" && before == "":
		p.log.Warn("the lease of the VIPs cannot be prolonged: they are another director's when it ends", "error", problem)
	case problem == "":
		p.log.Info("the lease of the VIPs is prolonged again")
	}
}

// minPatience is the least time that etcd has for an answer: it writes to its disk first.
const minPatience = 500 * time.Millisecond

// keep returns the VIPs that this director goes on answering for, and those that it gives up. It does
// not answer for those again, whatever is decided later, until the group knows it: another director may
// have them by then.
func (p *part) keep(group *model.NeighborGroup, d decision) (hold, release []model.VIP) {
	for vip := range p.giving {
		if !group.Owners[vip].Mine {
			delete(p.giving, vip)
		}
	}
	for _, vip := range d.release {
		p.giving[vip] = true
	}
	hold = slices.DeleteFunc(d.hold, func(vip model.VIP) bool { return p.giving[vip] })
	return hold, slices.SortedFunc(maps.Keys(p.giving), model.VIP.Compare)
}

// write begins to tell the group what this director offers, claims and gives up, unless a write is
// under way.
func (p *part) write(ctx context.Context, group *model.NeighborGroup, offers []model.VIP, home []netip.Addr, d decision) {
	offer := !group.Joined || !slices.Equal(group.Members[p.self], offers) || !slices.Equal(group.Home, home)
	if p.guard.lapsed() || !offer && len(d.claim)+len(d.release) == 0 || !p.busy.CompareAndSwap(false, true) {
		return
	}
	p.running.Go(func() {
		err := p.publish(ctx, offer, offers, home, d)
		if err == nil {
			p.pauses.Reset()
		} else {
			if ctx.Err() == nil {
				p.log.Debug("the group cannot be told who answers for VIPs", "error", err)
			}
			retry.Sleep(ctx, p.pauses.Next())
		}
		p.busy.Store(false)
		p.notify()
	})
}

func (p *part) publish(ctx context.Context, offer bool, offers []model.VIP, home []netip.Addr, d decision) error {
	ctx, cancel := context.WithTimeout(ctx, writePatience)
	defer cancel()
	if offer {
		if err := p.registry.Offer(ctx, offers, home); err != nil {
			return err
		}
	}
	if len(d.claim)+len(d.release) == 0 {
		return nil
	}
	return p.registry.Move(ctx, d.claim, d.release)
}

// end gives everything up.
func (p *part) end() {
	p.stop()
	p.running.Wait()
	ctx, cancel := context.WithTimeout(context.Background(), leavePatience)
	defer cancel()
	if err := p.registry.Leave(ctx); err != nil {
		p.log.Warn("other directors answer for VIPs when the lease ends, not at once", "error", err)
	}
}
