package engine

import (
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"weir.io/weir/internal/history"
	"weir.io/weir/internal/model"
)

// Hooks about backends are told what checks have found, also while all backends are used in spite of them,
// and that a draining backend is drained when no generation of the log names it any more.
func TestServicesTold(t *testing.T) {
	s := checkedWeb(5, 100)
	now := time.Now()
	log := history.Advance(model.Log{}, &s, now)
	s.Backends[3].State, s.Backends[4].State = model.Draining, model.Down
	known := Health{targetOf(&s, 0): model.HealthUp, targetOf(&s, 1): model.HealthDown, targetOf(&s, 2): model.HealthUnknown, targetOf(&s, 3): model.HealthUp}
	desired := model.Config{Services: []model.Service{s}}
	states := func() (list []model.HookState) {
		t.Helper()
		logs := Logs{s.ID(): log}
		_, report := NewPlanner().Plan(desired, logs, known)
		told := servicesTold(&desired, logs, known, &report)
		if len(told) != 1 || told[0].Name != s.Name || told[0].ID != s.ID() || told[0].State != model.HookUp || told[0].Healthy != 1 {
			t.Fatalf("told %+v, want one service that is up, with one healthy backend", told)
		}
		for i, b := range told[0].Backends {
			if b.Name != s.Backends[i].Name || b.Endpoint != s.Backends[i].Endpoint() {
				t.Errorf("told %+v of backend %d", b, i)
			}
			list = append(list, b.State)
		}
		return list
	}
	logs := Logs{s.ID(): log}
	_, report := NewPlanner().Plan(desired, logs, known)
	if told := servicesTold(&desired, logs, known, &report); told != nil {
		t.Errorf("without a hook about backends, %+v are told", told)
	}
	desired.Hooks = []model.Hook{{Name: "pager", About: []model.HookSubject{model.HookBackends}}}
	log = history.Advance(log, &s, now.Add(time.Second))
	want := []model.HookState{model.HookUp, model.HookDown, model.HookUnknown, model.HookDraining, model.HookDown}
	if diff := cmp.Diff(want, states(), cmpopts.EquateComparable(netip.AddrPort{})); diff != "" {
		t.Errorf("while the log names the draining backend (-want +got):\n%s", diff)
	}
	log, _ = history.Trim(log, &s, nil, nil, now.Add(time.Hour))
	want[3] = model.HookDrained
	if diff := cmp.Diff(want, states()); diff != "" {
		t.Errorf("when it does not (-want +got):\n%s", diff)
	}
}
