package agentd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"weir.io/weir/internal/api"
	"weir.io/weir/internal/model"
	"weir.io/weir/internal/problems"
	"weir.io/weir/internal/retry"
)

const (
	directorPatience = 5 * time.Second // for one director's answer
	reportableFor    = time.Minute     // what a director says that it takes
	firstPause       = 5 * time.Second // before one that has failed is asked again
	lastPause        = time.Minute
	// A director that shares reports is asked itself from time to time: it is to be there when others are not, and
	// may no longer share them.
	eachAskedEvery = 5 * time.Minute
)

// errNotTaken says that no director has a report.
var errNotTaken = errors.New("none of agent.store.directors takes them")

// directors are where an agent reports to by their API.
type directors struct {
	all []*director

	mu         sync.Mutex
	unmeasured error // why there are no loads
}

func newDirectors(s *model.AgentDirectors, log *slog.Logger) *directors {
	d := &directors{}
	for _, url := range s.Endpoints {
		d.all = append(d.all, &director{options: remoteOptions(s, url), log: log.With("director", url), now: time.Now,
			pauses: retry.Backoff{First: firstPause, Last: lastPause}, loads: loadLine{pauses: retry.Backoff{First: firstPause, Last: lastPause}}})
	}
	return d
}

func remoteOptions(s *model.AgentDirectors, url string) api.RemoteOptions {
	return api.RemoteOptions{URL: url, CA: s.CA, Cert: s.Cert, Key: s.Key, TokenFile: s.TokenFile}
}

// outcome is what became of a report at a director.
type outcome struct{ taken, shared bool }

// PutReports brings reports to every director: to each that keeps them for itself, and to one of those that share them.
// A director that fails is asked again later, and keeps none of the others from having them. It is an error if none
// takes them.
func (d *directors) PutReports(ctx context.Context, reports []model.AgentReport) error {
	var asking sync.WaitGroup
	outcomes := make([]outcome, len(d.all))
	var others []*director
	for i, one := range d.all {
		switch one.turn() {
		case turnNow:
			asking.Go(func() { outcomes[i] = one.put(ctx, reports) })
		case turnInstead:
			others = append(others, one)
		}
	}
	asking.Wait()
	slices.SortStableFunc(others, func(a, b *director) int { return b.status().Last.Compare(a.status().Last) })
	for _, one := range others {
		if slices.ContainsFunc(outcomes, func(o outcome) bool { return o.shared }) {
			break
		}
		outcomes = append(outcomes, one.put(ctx, reports))
	}
	if !slices.ContainsFunc(outcomes, func(o outcome) bool { return o.taken }) {
		return errNotTaken
	}
	return nil
}

// status is what became of reports at each director.
func (d *directors) status() (all []model.AgentDirector) {
	if d == nil {
		return nil
	}
	for _, one := range d.all {
		all = append(all, one.status())
	}
	return all
}

// warn lists the directors that do not take this agent's reports, or not all of them.
func (d *directors) warn(list *problems.List) {
	if d == nil {
		return
	}
	for _, one := range d.all {
		one.mu.Lock()
		list.Warn(model.ProblemReports, one.options.URL, one.problem)
		one.mu.Unlock()
	}
}

// director is one that takes reports.
type director struct {
	options api.RemoteOptions
	log     *slog.Logger
	now     func() time.Time

	mu      sync.Mutex
	may     api.Reportable // what it takes
	asked   time.Time      // when it said that; zero: it is to be asked again
	last    time.Time      // when it took a report
	shared  bool           // it brought that to other directors
	taken   uint64
	failed  uint64
	problem error
	pauses  retry.Backoff
	next    time.Time // it is not asked earlier
	loads   loadLine
}

// turn is when a director is asked.
type turn int

const (
	turnLater   turn = iota // it has failed
	turnNow                 // it needs the reports itself
	turnInstead             // another one may bring it the reports
)

func (d *director) turn() turn {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := d.now()
	switch {
	case now.Before(d.next):
		return turnLater
	case d.shared && d.problem == nil && now.Sub(d.last) < eachAskedEvery:
		return turnInstead
	}
	return turnNow
}

// put brings reports to the director, as far as it takes them.
func (d *director) put(ctx context.Context, reports []model.AgentReport) outcome {
	whole := ctx
	ctx, cancel := context.WithTimeout(ctx, directorPatience)
	defer cancel()
	took, missing, err := d.try(ctx, reports)
	d.mu.Lock()
	defer d.mu.Unlock()
	if err != nil && whole.Err() != nil {
		return outcome{} // nothing is wrong: the agent ends
	}
	if p := (*api.Problem)(nil); errors.As(err, &p) && p.Status == http.StatusTooManyRequests && d.problem == nil {
		return outcome{} // it was told enough
	}
	if err != nil {
		d.failed++
		d.asked, d.next = time.Time{}, d.now().Add(d.pauses.Next())
		if d.problem == nil || root(d.problem).Error() != root(err).Error() { // else the ports in it are others
			d.log.Warn("a director does not take this host's reports", "error", err)
			d.problem = err
		}
		return outcome{}
	}
	if d.problem != nil && missing == nil {
		d.log.Info("the director takes this host's reports")
	}
	d.taken++
	d.last, d.shared, d.problem = d.now(), took.Shared, missing
	d.pauses.Reset()
	d.next = time.Time{}
	return outcome{true, took.Shared}
}

// try does it. missing is what the director expects, and the reports do not have.
func (d *director) try(ctx context.Context, reports []model.AgentReport) (took api.PutReport, missing, err error) {
	client, err := api.NewRemoteClient(d.options) // it reads the files again: they may have been renewed
	if err != nil {
		return took, nil, fixed(err)
	}
	may, err := d.reportable(ctx, client)
	if err != nil {
		return took, nil, d.named(err)
	}
	own := reportable(reports, &may)
	if len(own) == 0 {
		return took, nil, problems.Fixed(fmt.Errorf("%s takes reports of %s, and by this agent's file no backend on this host in mode gue is there", d.options.URL, addressesOf(&may)),
			"give the backend in this file that address and segment, or the director's api.clients the addresses and segment of this backend")
	}
	took.Shared = true
	for i := range own {
		one, err := client.PutReport(ctx, &own[i])
		if err != nil {
			return took, nil, d.named(err)
		}
		took.Shared = took.Shared && one.Shared
	}
	return took, d.missing(own, &may), nil
}

// reportable returns what the director takes, which it is asked for from time to time.
func (d *director) reportable(ctx context.Context, client *api.Client) (api.Reportable, error) {
	d.mu.Lock()
	may, asked := d.may, d.asked
	d.mu.Unlock()
	if now := d.now(); !asked.IsZero() && now.Sub(asked) < reportableFor && !now.Before(asked) {
		return may, nil
	}
	may, err := client.Reportable(ctx)
	if err != nil {
		return may, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.may, d.asked = may, d.now()
	return may, nil
}

// reportable returns what a director takes of reports: files may have services that it does not know yet, or no longer.
func reportable(reports []model.AgentReport, may *api.Reportable) (own []model.AgentReport) {
	takes := make(map[model.ServiceID]bool, len(may.Services))
	for _, id := range may.Services {
		takes[id] = true
	}
	for _, r := range reports {
		if r.Segment != may.Segment || !slices.Contains(may.Addresses, r.Backend) {
			continue
		}
		r.Services = slices.DeleteFunc(slices.Clone(r.Services), func(s model.ReportedService) bool { return !takes[s.ServiceID] })
		r.Signals = slices.DeleteFunc(slices.Clone(r.Signals), func(s model.Signal) bool { return !takes[s.ServiceID] })
		own = append(own, r)
	}
	return own
}

// missing says which services the director expects reports of and does not get. Of UDP there are none if the agent
// remembers no flows.
func (d *director) missing(own []model.AgentReport, may *api.Reportable) error {
	var names []string
	about := map[model.ServiceID]bool{}
	for i := range own {
		for j := range own[i].Services {
			about[own[i].Services[j].ServiceID] = true
		}
	}
	for _, id := range may.Services {
		if id.Protocol == model.TCP && !about[id] {
			names = append(names, fmt.Sprintf("%s port %s", id.VIP, id.Port))
		}
	}
	if len(names) == 0 {
		return nil
	}
	const most = 3
	text := strings.Join(names[:min(len(names), most)], ", ")
	if len(names) > most {
		text += fmt.Sprintf(" and %d others", len(names)-most)
	}
	return problems.Fixed(fmt.Errorf("%s expects reports of services that this agent's file does not have (%s): it keeps their generations until max-retention", d.options.URL, text),
		"let this file have the same services as the directors")
}

func addressesOf(may *api.Reportable) string {
	var all []string
	for _, a := range may.Addresses {
		all = append(all, model.HostAddress{Segment: may.Segment, Address: a}.String())
	}
	return strings.Join(all, " and ")
}

// named adds the director's URL to what it answers, and what to do.
func (d *director) named(err error) error {
	if p := (*api.Problem)(nil); errors.As(err, &p) {
		err = fmt.Errorf("%s: %w", d.options.URL, err)
	}
	return fixed(err)
}

// fixed adds what to do about a failure.
func fixed(err error) error {
	p := (*api.Problem)(nil)
	switch {
	case !errors.As(err, &p):
		return problems.Fixed(err, "see that the director runs, that its api.listen is this address and can be reached, and that the files of agent.store.directors are right")
	case p.Status == http.StatusUnauthorized:
		return problems.Fixed(err, "see that one of the director's api.clients has the role agent, and this token or certificate")
	case p.Status == http.StatusForbidden:
		return problems.Fixed(err, "see that the director's api.clients has the role agent, and the addresses and segment of this host's backend")
	}
	return err
}

// root is the error that others wrap.
func root(err error) error {
	for {
		inner := errors.Unwrap(err)
		if inner == nil {
			return err
		}
		err = inner
	}
}

func (d *director) status() model.AgentDirector {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := model.AgentDirector{Director: d.options.URL, Shared: d.shared, Taken: d.taken, Failed: d.failed, Last: d.last}
	if d.problem != nil {
		s.Problem = d.problem.Error()
	}
	return s
}
