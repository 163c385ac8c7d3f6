package director

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"sync"

	"weir.io/weir/internal/api"
	"weir.io/weir/internal/daemon"
	"weir.io/weir/internal/history"
	"weir.io/weir/internal/loads"
	"weir.io/weir/internal/model"
	"weir.io/weir/internal/utilization"
)

// Status is the API's way to the kernel.
func (d *Director) Status() (model.DatapathStatus, error) {
	logs := d.engine.LogStatus()
	status, err := d.kernel.Status()
	if err != nil {
		return status, err
	}
	maps.Copy(logs, d.engine.LogStatus()) // of services that came meanwhile; those that left are there already
	status.CPUs = d.gauge.cpus()
	status.Upkeep = d.host.Status()
	status.Agents = d.controller.Agents()
	d.reports.Count(&status.Agents)
	status.Peers, status.Strangers = d.members.status()
	status.Hooks = d.announcers.hooks.Status()
	status.Neighbor = d.announcers.neighbor.Status()
	status.Refused = d.remote.CountRefused()
	status.HostSources, status.OVN = d.segments.Sources(), d.ovn.Status()
	status.Steering = d.steeringStatus(status.Services)
	if status.FanOut, err = d.kernel.FanOut(); err != nil {
		return status, fmt.Errorf("read what was given to other CPUs: %w", err)
	}
	left := d.controller.Left()
	for _, cause := range history.Causes {
		status.Left = append(status.Left, model.Tallied{Name: string(cause), Count: left[cause]})
	}
	status.Probes, status.RedirectProbes = d.checker.Probes(), d.checker.RedirectProbes()
	if status.CheckPackets, err = d.checks.Sent(); err != nil {
		return status, fmt.Errorf("read what became of health checks: %w", err)
	}
	overrides := model.IndexOverrides(d.controller.Overridden())
	found, strained := d.checker.Results(), d.controller.Strained()
	for i := range status.Services {
		s := &status.Services[i]
		id := model.ServiceID{Segment: s.Segment, VIP: s.VIP, Protocol: s.Protocol, Port: s.Port}
		s.Log = logs[id]
		addHealth(s, id, found)
		addStrain(s, id, strained)
		addOverrides(s, overrides)
	}
	config := d.Config()
	uses := model.UsageBySegment(config.Services)
	for i := range status.Segments {
		status.Segments[i].Probes = uses[status.Segments[i].ID].Probes()
		if limits, key := config.LimitsOf(status.Segments[i].ID); key != "" {
			status.Segments[i].Limits = &limits
		}
	}
	d.loads.add(&status, &config)
	if status.Loads != nil {
		taken, refused := d.reports.CountLoads()
		status.Loads.Messages = append(status.Loads.Messages, model.Tallied{Name: "taken_by_api", Count: taken}, model.Tallied{Name: "refused_by_api", Count: refused})
	}
	return status, nil
}

// addHealth adds what probes say to what the kernel does.
func addHealth(s *model.ServiceStatus, id model.ServiceID, found map[model.Target]model.BackendHealth) {
	for i := range s.Backends {
		b := &s.Backends[i]
		target := model.Target{Service: id, Backend: netip.AddrPortFrom(b.Address, b.Port)}
		if of, checked := found[target]; checked {
			b.Health = &of
		}
		target.Redirect = true
		if of, asked := found[target]; asked {
			b.Redirect = &model.BackendRedirect{
				Able: b.Mode == model.Redirect, Since: of.Since, Probed: of.Probed, Took: of.Took, Reason: of.Reason, Detail: of.Detail,
			}
		}
	}
}

// addStrain adds what agents report about strained backends.
func addStrain(s *model.ServiceStatus, id model.ServiceID, strained map[model.Target]model.BackendStrain) {
	for i := range s.Backends {
		b := &s.Backends[i]
		if of, is := strained[model.Target{Service: id, Backend: netip.AddrPortFrom(b.Address, b.Port)}]; is {
			b.Strain = &of
		}
	}
}

// addOverrides adds the clients that have overridden the states of the file's backends.
func addOverrides(s *model.ServiceStatus, overrides model.OverrideIndex) {
	for i := range s.Backends {
		b := &s.Backends[i]
		if o := overrides.Named(s.Name, b.Name); o != nil {
			b.Override = &o.Override
		}
	}
}

// say tells the service manager what the director does.
func (d *Director) say() {
	does := "forwards " + daemon.ServicesText(len(d.Config().Services))
	if d.kernel.Attached() == 0 {
		does = "forwards nothing: no interface has the director's program"
	}
	d.Say(does)
}

// Info also says which state of the group is followed, and what does not run now.
func (d *Director) Info() api.Info {
	d.gather()
	info := d.Daemon.Info()
	info.Revision = d.controller.Revision()
	return info
}

// loadReports are agents' reports of loads, and a director's use of them.
type loadReports struct {
	aggregator *loads.Aggregator
	receiver   *loads.Receiver
}

func newLoadReports(to loads.Sink, log *slog.Logger) loadReports {
	aggregator := loads.NewAggregator(to, log)
	return loadReports{aggregator, loads.NewReceiver(aggregator.Add, log)}
}

// set follows the configuration. A director that cannot receive reports still forwards: services
// that would use them do without. The receiver tells what is wrong.
func (l loadReports) set(c *model.Config) {
	_ = l.receiver.Set(c)
	l.aggregator.Expect(c.Loads.Given())
}

// add adds to a status what was reported. Without a configuration of loads it adds nothing.
func (l loadReports) add(status *model.DatapathStatus, c *model.Config) {
	if !c.Loads.Given() {
		return
	}
	heard := l.receiver.Status()
	heard.Agents = l.aggregator.Agents()
	status.Loads = &heard
	for i := range status.Services {
		s := &status.Services[i]
		of, backends := l.aggregator.Status(model.ServiceID{Segment: s.Segment, VIP: s.VIP, Protocol: s.Protocol, Port: s.Port})
		s.Loads = of
		for j := range s.Backends {
			b := &s.Backends[j]
			b.Load = backends[netip.AddrPortFrom(b.Address, b.Port)]
		}
	}
}

// gauge is how busy the CPUs are. It knows nothing until it is started, or if the kernel refuses to
// tell.
type gauge struct {
	watch *utilization.Watch
	log   *slog.Logger
}

// start watches the CPUs until the context ends; end waits for that. Forwarding does not need it, so
// errors are only logged.
func (g *gauge) start(ctx context.Context, log *slog.Logger) (end func()) {
	const without = "no utilization in status and metrics, forwarding is not affected"
	meter, err := utilization.Open()
	if err != nil {
		log.Warn(without, "error", err)
		return func() {}
	}
	watch, err := utilization.NewWatch(meter)
	if err != nil {
		log.Warn(without, "error", err)
		return func() { closeMeter(meter, log) }
	}
	g.watch, g.log = watch, log
	var running sync.WaitGroup
	running.Go(func() { watch.Run(ctx, log) })
	return func() {
		running.Wait()
		closeMeter(meter, log)
	}
}

func closeMeter(meter *utilization.Meter, log *slog.Logger) {
	if err := meter.Close(); err != nil {
		log.Warn("utilization not closed", "error", err)
	}
}

// cpus returns the work of each CPU in the last seconds, nil when it is not known.
func (g *gauge) cpus() []model.CPUStatus {
	if g.watch == nil {
		return nil
	}
	work, err := g.watch.CPUs()
	if err != nil {
		g.log.Warn("utilization not read", "error", err)
		return nil
	}
	cpus := make([]model.CPUStatus, len(work))
	for i, c := range work {
		cpus[i] = model.CPUStatus{CPU: c.Number, Utilization: c.Utilization, Busy: c.Busy, Fullness: c.Fullness}
	}
	return cpus
}
