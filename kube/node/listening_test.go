package node

import (
	"context"
	"encoding/json"
	"maps"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"weir.io/weir/internal/api"
	"weir.io/weir/internal/config"
	"weir.io/weir/internal/model"
)

// listening stands for a weir run: it answers by weir's API, takes sets that go together, and runs
// by its file when that is let be read.
type listening struct {
	file string

	mu     sync.Mutex
	refuse bool // sets with node ports
	runs   model.Config
	sets   map[string][]model.Document
}

func (l *listening) Status() (model.DatapathStatus, error) { return model.DatapathStatus{}, nil }

// Info says that something has just been applied, as it is after any change of sets.
func (l *listening) Info() api.Info { return api.Info{Applied: time.Now()} }

func (l *listening) Config() model.Config {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.runs
}

// reads takes in what the file is now.
func (l *listening) reads(t *testing.T) {
	t.Helper()
	c, err := config.Load(l.file)
	if err != nil {
		t.Fatal(err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.runs = c
}

// refuses says whether it refuses sets with node ports.
func (l *listening) refuses(does bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.refuse = does
}

// becomes makes it another process, with what is in its state.
func (l *listening) becomes(sets map[string][]model.Document) (had map[string][]model.Document) {
	l.mu.Lock()
	defer l.mu.Unlock()
	had, l.sets = l.sets, maps.Clone(sets)
	return had
}

// ports are how many services it has at node ports.
func (l *listening) ports() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.sets["kube.edge.nodeports"])
}

func (l *listening) List() (list []api.SetInfo) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for owner, documents := range l.sets {
		list = append(list, api.SetInfo{Owner: owner, Services: len(documents)})
	}
	return list
}

func (l *listening) Give(_ context.Context, owner string, text []byte) (none api.SetChange, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var set struct{ Documents []model.Document }
	if err := json.Unmarshal(text, &set); err != nil {
		return none, err
	}
	if l.refuse && strings.HasSuffix(owner, ".nodeports") {
		return none, api.NewProblem(http.StatusConflict, "it is refused")
	}
	all := l.runs
	all.Services = nil
	for other, documents := range l.sets {
		if other != owner {
			for _, d := range documents {
				all.Services = append(all.Services, d.Service)
			}
		}
	}
	for _, d := range set.Documents {
		all.Services = append(all.Services, d.Service)
	}
	if err := all.Validate(); err != nil {
		return none, api.NewProblem(http.StatusConflict, err.Error())
	}
	l.sets[owner] = set.Documents
	return none, nil
}

func (*listening) Get(string) (none api.Set, is bool)                               { return }
func (*listening) Documents(string) ([]model.Document, bool)                        { return nil, false }
func (*listening) Plan(context.Context, api.PlanRequest) (none api.Plan, err error) { return }
func (*listening) Drain(context.Context, api.Drain) ([]api.Drained, error) {
	return nil, nil
}
func (*listening) Put(context.Context, string, api.SetText, api.Condition) (none api.SetChange, err error) {
	return
}
