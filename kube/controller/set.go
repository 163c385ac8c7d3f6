package controller

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"weir.io/weir/internal/api"
	"weir.io/weir/internal/model"
)

// Director is a director that gets sets by PUT.
type Director struct {
	Name   string // in logs: its socket or URL
	Client *api.Client
}

// setWriter puts the set to the directors of a group. The directors share it, so the first one that
// answers is enough.
type setWriter struct {
	directors []*Director
	owner     string
	log       *slog.Logger

	limits limits // of the directors

	asked []byte // the set that was put, or was there already
	tag   string // of the set with that text

	// What was last wanted, and whether directors have taken all of it.
	revision uint64
	set      api.Set
	taken    bool
}

// refusal is a Service or a Gateway that the directors do not take, and why.
type refusal struct {
	whose *wish
	why   string
}

// errWhole is the refusal of a set that names no service as its cause.
var errWhole = errors.New("the directors refuse the set as a whole")

// put makes the set what the plan wants. Parts that clash with what others have are left out and
// returned: they must not keep the rest from being forwarded.
func (w *setWriter) put(ctx context.Context, p *plan) (refused []refusal, err error) {
	if w.taken && w.revision == p.revision { // something else may have changed it nevertheless
		return nil, w.all(ctx, w.set, w.asked)
	}
	w.taken = false
	parts, err := p.parts()
	if err != nil {
		return nil, err
	}
	for {
		w.set = api.Set{Services: services(parts)}
		if err = w.all(ctx, w.set, setText(parts)); err == nil {
			w.revision, w.taken = p.revision, len(refused) == 0
			return refused, nil
		}
		var problem *api.Problem
		if !errors.As(err, &problem) || problem.Status != http.StatusConflict && problem.Status != http.StatusUnprocessableEntity {
			return refused, err
		}
		named := map[int]string{}
		for _, field := range problem.Errors {
			if i, found := serviceIn(field.Field); found && i < len(parts) && named[i] == "" {
				named[i] = field.Detail
			}
		}
		if len(named) == 0 {
			return refused, fmt.Errorf("%w: %w", errWhole, err)
		}
		rest, more := leaveOut(parts, named)
		parts, refused = rest, append(refused, more...)
	}
}

// serviceIn returns the number of the service that a field belongs to: services[3].vip belongs to
// 3.
func serviceIn(field string) (int, bool) {
	number, found := strings.CutPrefix(field, "services[")
	if !found {
		return 0, false
	}
	number, _, _ = strings.Cut(number, "]")
	i, err := strconv.Atoi(number)
	return i, err == nil && i >= 0
}

// leaveOut returns the parts without those that are named, and without all others of the same
// Service: half a Service is worse than none, because no user would look for what is wrong. named
// says what is wrong with each part.
func leaveOut(parts []part, named map[int]string) (rest []part, refused []refusal) {
	out := map[*wish]bool{}
	for i, p := range parts {
		if why, is := named[i]; is {
			if !out[p.whose] {
				refused = append(refused, refusal{p.whose, fmt.Sprintf("%s: %s", p.service.Name, why)})
			}
			out[p.whose] = true
		}
	}
	for _, p := range parts {
		if !out[p.whose] {
			rest = append(rest, p)
		}
	}
	return rest, refused
}

func services(parts []part) []model.Service {
	list := make([]model.Service, len(parts))
	for i, p := range parts {
		list[i] = p.service
	}
	return list
}

// all makes this the set of the directors, through the first one that answers, unless it is so
// already.
func (w *setWriter) all(ctx context.Context, set api.Set, text []byte) error {
	var errs []error
	for _, d := range w.directors {
		err := w.at(ctx, d, set, text)
		var problem *api.Problem
		if err == nil || ctx.Err() != nil || errors.As(err, &problem) && problem.Status < http.StatusInternalServerError {
			return err // the others would say the same
		}
		errs = append(errs, fmt.Errorf("%s: %w", d.Name, err))
	}
	return errors.Join(errs...)
}

// at makes this the set at one director. It replaces only the set that it knows: a process that
// lost its lease while it stood still cannot undo what the next one did.
func (w *setWriter) at(ctx context.Context, d *Director, set api.Set, text []byte) error {
	tag, found, err := w.tagAt(ctx, d)
	if err != nil {
		return err
	}
	when := api.Condition{Tags: []string{tag}}
	switch asked := bytes.Equal(w.asked, text); {
	case !found:
		when = api.Condition{None: true}
	case tag == w.tag && asked:
		return nil // the usual case
	case tag != w.tag && (asked || w.asked == nil):
		// An earlier process wrote it, or something else.
		there, err := d.Client.Set(ctx, w.owner)
		if err != nil {
			return err
		}
		if same(there.Services, set.Services) {
			w.asked, w.tag = text, there.Tag
			return nil
		}
	}
	change, err := d.Client.PutSet(ctx, w.owner, api.SetText{JSON: true, Text: text}, when)
	if err != nil {
		return err
	}
	w.asked, w.tag = text, change.Tag
	w.log.Info("the directors have another set", "director", d.Name, "services", len(set.Services), "added", len(change.Added),
		"changed", len(change.Changed), "removed", len(change.Removed), "revision", change.Revision)
	return nil
}

// tagAt returns the tag of this owner's set at a director.
func (w *setWriter) tagAt(ctx context.Context, d *Director) (tag string, found bool, err error) {
	sets, err := d.Client.Sets(ctx)
	i := slices.IndexFunc(sets, func(s api.SetInfo) bool { return s.Owner == w.owner })
	if err != nil || i < 0 {
		return "", false, err
	}
	return strings.Trim(sets[i].ETag, `"`), true, nil
}

// same reports whether two sets differ at most in the states of backends: an operator may have
// drained some by hand, and that lasts until Kubernetes wants something else.
func same(a, b []model.Service) bool {
	x, err1 := json.Marshal(active(a))
	y, err2 := json.Marshal(active(b))
	return err1 == nil && err2 == nil && bytes.Equal(x, y)
}

func active(services []model.Service) []model.Service {
	list := make([]model.Service, len(services))
	for i, s := range services {
		backends := make([]model.Backend, len(s.Backends))
		for j, b := range s.Backends {
			b.State = model.Active
			backends[j] = b
		}
		s.Backends = backends
		list[i] = s
	}
	return list
}
