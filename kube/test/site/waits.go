package site

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"weir.io/weir/internal/api"
	"weir.io/weir/kube/v1alpha1"
	"weir.io/weir/lab/process"
)

// Waits is how long running directors wait on purpose.
type Waits struct{ Coalesce, Notice time.Duration }

// Waits returns the waits of directors of their own.
func (d *Director) Waits(ctx context.Context) (Waits, error) {
	c, err := api.NewClient(d.Weir.Socket).Config(ctx)
	if err != nil {
		return Waits{}, fmt.Errorf("ask %s for its configuration: %w", d.Name, err)
	}
	return Waits{time.Duration(c.Coalesce), time.Duration(c.Notice)}, nil
}

// Waits returns the waits of the DirectorGroup, including defaults of the API server and weir-kube
// node.
func (e *Edge) Waits(ctx context.Context) (w Waits, err error) {
	c, err := api.NewClient(e.Socket()).Config(ctx)
	if err != nil {
		return w, fmt.Errorf("ask the director of %s for its configuration: %w", e.Name, err)
	}
	text, err := e.site.Core.RESTClient().Get().AbsPath("/apis/weir.io/v1alpha1/directorgroups/" + edgeGroup).Do(ctx).Raw()
	if err != nil {
		return w, fmt.Errorf("read the DirectorGroup: %w", err)
	}
	var group v1alpha1.DirectorGroup
	if err := json.Unmarshal(text, &group); err != nil {
		return w, fmt.Errorf("read the DirectorGroup: %w", err)
	}
	w.Coalesce = time.Duration(c.Coalesce)
	w.Notice, err = time.ParseDuration(string(group.Spec.Notice))
	return w, err
}

// SetSince returns when the directors had the first set after a time: directors of their own by the
// controller's log, or all of the DirectorGroup's by their sidecars' logs. It is zero if they have
// none.
func (s *Site) SetSince(after time.Time) (last time.Time) {
	if len(s.Directors) > 0 {
		return said(s.weirKube, "the directors have another set", after)
	}
	for _, e := range s.Edges {
		if !e.joined {
			continue
		}
		at := said(e.sidecar, "the director has another set", after)
		if at.IsZero() {
			return at
		}
		if at.After(last) {
			last = at
		}
	}
	return last
}

// said returns when a process first logged something after a time, in text or JSON.
func said(p *process.Process, what string, after time.Time) time.Time {
	for line := range strings.Lines(p.Log()) {
		if !strings.Contains(line, what) {
			continue
		}
		line = strings.TrimPrefix(strings.TrimPrefix(line, `{"time":"`), "time=")
		stamp := line[:max(0, strings.IndexAny(line, `" `))]
		if at, err := time.Parse(time.RFC3339Nano, stamp); err == nil && at.After(after) {
			return at
		}
	}
	return time.Time{}
}
