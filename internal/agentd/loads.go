package agentd

import (
	"context"
	"sync"
	"time"

	"weir.io/weir/internal/api"
	"weir.io/weir/internal/loads"
	"weir.io/weir/internal/model"
	"weir.io/weir/internal/problems"
	"weir.io/weir/internal/retry"
)

// How often loads are reported by the API, and how long one connection and what a director takes are used: files may
// have been renewed.
const (
	loadsEvery    = time.Second
	loadsPatience = 2 * time.Second
	loadsClient   = time.Minute
	// restFactor bounds measuring to a twentieth of a CPU.
	restFactor = 20
)

// reportLoads reports loads to all directors while on returns true, until the context ends. Directors do not wait for
// each other.
func (d *directors) reportLoads(ctx context.Context, meter loads.Meter, on func() bool) {
	for began := time.Now(); ctx.Err() == nil; began = time.Now() {
		next := loadsEvery
		if on() {
			measured, took, err := meter.Loads()
			next = max(next, restFactor*took)
			d.noteMeter(err)
			if err == nil {
				var asking sync.WaitGroup
				for _, one := range d.all {
					asking.Go(func() { one.putLoads(ctx, measured, next) })
				}
				asking.Wait()
			}
		} else {
			d.forgetLoads()
		}
		retry.Sleep(ctx, next-time.Since(began))
	}
}

// noteMeter remembers why there are no loads; nil: there are.
func (d *directors) noteMeter(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.unmeasured = err
}

// forgetLoads ends what was wrong with reports of loads: none are to be made.
func (d *directors) forgetLoads() {
	d.noteMeter(nil)
	for _, one := range d.all {
		one.mu.Lock()
		one.loads.problem, one.loads.takes = nil, false
		one.mu.Unlock()
	}
}

// warnOfLoads lists why directors do not learn of this host's loads.
func (d *directors) warnOfLoads(list *problems.List) {
	if d == nil {
		return
	}
	d.mu.Lock()
	list.Warn(model.ProblemLoads, "measured", d.unmeasured)
	d.mu.Unlock()
	for _, one := range d.all {
		one.mu.Lock()
		list.Warn(model.ProblemLoads, one.options.URL, one.loads.problem)
		one.mu.Unlock()
	}
}

// loadStatus is how loads are reported by the API.
func (d *directors) loadStatus() *model.AgentLoads {
	status := &model.AgentLoads{Directors: len(d.all), Interval: model.Duration(loadsEvery)}
	for _, one := range d.all {
		one.mu.Lock()
		l := &one.loads
		status.Sent, status.Failed = status.Sent+l.sent, status.Failed+l.failed
		if l.takes {
			status.Known++
		}
		if l.problem != nil && status.Problem == "" {
			status.Problem = l.problem.Error()
		}
		one.mu.Unlock()
	}
	return status
}

// loadLine is the way of loads to a director.
type loadLine struct {
	client  *api.Client
	made    time.Time
	may     []api.LoadTarget // what it takes
	takes   bool             // it has taken the last loads, or uses none
	sent    uint64
	failed  uint64
	problem error
	pauses  retry.Backoff
	next    time.Time
}

// putLoads reports the loads that a director uses.
func (d *director) putLoads(ctx context.Context, measured []model.Load, interval time.Duration) {
	d.mu.Lock()
	l := &d.loads
	now := d.now()
	if now.Before(l.next) {
		d.mu.Unlock()
		return
	}
	client, may, fresh := l.client, l.may, l.client != nil && now.Sub(l.made) < loadsClient && !now.Before(l.made)
	d.mu.Unlock()
	whole := ctx
	ctx, cancel := context.WithTimeout(ctx, loadsPatience)
	defer cancel()
	sent, err := false, error(nil)
	for again := fresh; ; again = false {
		if !fresh {
			if client != nil {
				client.CloseIdle()
			}
			client, may, err = d.openLoads(ctx)
		}
		if own := usedLoads(measured, may); err == nil && len(own) > 0 {
			sent, err = true, client.PutLoads(ctx, &api.LoadReport{Interval: model.Duration(interval), Loads: own})
		}
		if err == nil || !again || ctx.Err() != nil {
			break
		}
		fresh = false // the director may have ended the connection, because others need it, or have other services now
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if whole.Err() != nil {
		return // nothing is wrong: the agent ends
	}
	if err != nil {
		if client != nil {
			client.CloseIdle()
		}
		l.client, l.takes = nil, false
		l.failed++
		l.next = d.now().Add(l.pauses.Next())
		if err = d.named(err); l.problem == nil || root(l.problem).Error() != root(err).Error() {
			l.problem = err
			d.log.Warn("a director does not take this host's loads", "error", err)
		}
		return
	}
	if !fresh {
		l.client, l.may, l.made = client, may, d.now()
	}
	if sent {
		l.sent++
	}
	l.takes, l.problem = true, nil
	l.pauses.Reset()
}

// openLoads returns a client, and the loads that the director uses.
func (d *director) openLoads(ctx context.Context) (*api.Client, []api.LoadTarget, error) {
	options := d.options
	options.KeepAlive = true
	client, err := api.NewRemoteClient(options)
	if err != nil {
		return nil, nil, err
	}
	may, err := client.Reportable(ctx)
	return client, may.Loads, err
}

// usedLoads returns the measured loads that a director uses.
func usedLoads(measured []model.Load, may []api.LoadTarget) (own []api.ReportedLoad) {
	if len(may) == 0 {
		return nil
	}
	uses := make(map[api.LoadTarget]bool, len(may))
	for _, target := range may {
		uses[target] = true
	}
	for i := range measured {
		l := &measured[i]
		if target := (api.LoadTarget{ServiceID: l.Service, Backend: l.Backend}); uses[target] {
			own = append(own, api.ReportedLoad{LoadTarget: target, Connections: l.Connections, Queue: l.Queue, Pressure: l.Pressure})
		}
	}
	return own
}
