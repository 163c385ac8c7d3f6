package main

import (
	"log/slog"
	"net/netip"

	"weir.io/weir/internal/agent"
	"weir.io/weir/internal/loads"
	"weir.io/weir/internal/model"
)

// loadReports are agents' reports of loads, and a director's use of them.
type loadReports struct {
	book     *loads.Book
	receiver *loads.Receiver
	log      *slog.Logger
}

func newLoadReports(to loads.Sink, log *slog.Logger) *loadReports {
	book := loads.NewBook(to, log)
	return &loadReports{book, loads.NewReceiver(book.Take, log), log}
}

// set follows the configuration. A director that cannot receive reports still forwards: services
// that would use them do without. The receiver tells what is wrong.
func (l *loadReports) set(c *model.Config) {
	_ = l.receiver.Set(c)
	l.book.Expect(c.Loads.Given())
}

// add adds to a status what was reported. Without a configuration of loads it adds nothing.
func (l *loadReports) add(status *model.DatapathStatus, c *model.Config) {
	if !c.Loads.Given() {
		return
	}
	heard := l.receiver.Status()
	heard.Agents = l.book.Agents()
	status.Loads = &heard
	for i := range status.Services {
		s := &status.Services[i]
		of, backends := l.book.Status(model.ServiceID{Segment: s.Segment, VIP: s.VIP, Protocol: s.Protocol, Port: s.Port})
		s.Loads = of
		for j := range s.Backends {
			b := &s.Backends[j]
			b.Load = backends[netip.AddrPortFrom(b.Address, b.Port)]
		}
	}
}

// meteredAgent is an agent that reports loads.
type meteredAgent struct {
	*agent.Agent
	sender *loads.Sender
}

// Status also says what was sent to directors.
func (a meteredAgent) Status() (model.AgentStatus, error) {
	status, err := a.Agent.Status()
	status.Loads = a.sender.Status()
	return status, err
}
