package engine

import (
	"net/netip"
	"reflect"
	"testing"
	"time"

	"weir.io/weir/internal/history"
	"weir.io/weir/internal/model"
)

// others are values that differ from those of web and what it is made of, for kinds whose
// value cannot be made by adding one.
var others = map[reflect.Type]any{
	reflect.TypeFor[netip.Addr]():         netip.MustParseAddr("2001:db8::99"),
	reflect.TypeFor[*uint32]():            new(uint32),
	reflect.TypeFor[*model.Mode]():        new(model.Mode),
	reflect.TypeFor[[]model.QUICConfig](): []model.QUICConfig{{ID: 1, NonceLength: 4}},
	reflect.TypeFor[*model.HealthCheck](): &model.HealthCheck{Kind: model.CheckTCP},
	reflect.TypeFor[model.MAC]():          model.MAC{2, 9},
	reflect.TypeFor[model.ServerIDs]():    model.SameServerID("id"),
}

// makeOther gives a field another value.
func makeOther(t *testing.T, field reflect.Value) {
	t.Helper()
	if value, has := others[field.Type()]; has {
		field.Set(reflect.ValueOf(value))
		return
	}
	switch field.Kind() {
	case reflect.String:
		field.SetString(field.String() + "x")
	case reflect.Bool:
		field.SetBool(!field.Bool())
	case reflect.Uint32:
		field.SetUint(field.Uint() + 2003) // a prime, as rings have
	case reflect.Uint8, reflect.Uint16:
		field.SetUint(field.Uint() + 1)
	case reflect.Int64:
		field.SetInt(field.Int() + 1)
	case reflect.Pointer:
		field.Set(reflect.New(field.Type().Elem()))
		makeOther(t, field.Elem())
	case reflect.Struct: // of numbers
		makeOther(t, field.Field(0))
	case reflect.Slice: // its last one goes, or one comes
		if field.Len() == 0 {
			field.Set(reflect.MakeSlice(field.Type(), 1, 1))
			return
		}
		field.Set(field.Slice(0, field.Len()-1))
	default:
		t.Fatalf("say in others what differs of a %v", field.Type())
	}
}

// A planner that remembers sees every change of a service or of its log since the last
// plan, also in fields of later versions.
func TestEveryFieldCounts(t *testing.T) {
	now := time.Unix(1000, 0)
	base := func() model.Service {
		s := web(3)
		s.Health = &model.HealthCheck{Kind: model.CheckTCP, SlowStart: model.Duration(time.Minute)}
		return s
	}
	before := base()
	log := model.Log{
		Steps:    []model.Step{{Backend: before.Backends[0].Endpoint(), Number: 1}},
		Strained: []model.Strain{{Backend: before.Backends[1].Endpoint(), Parts: 1}},
	}
	lighter := base()
	lighter.Backends[2].Weight = 50
	log = history.Advance(history.Advance(log, &lighter, now), &before, now.Add(time.Second))
	plans := func(t *testing.T, what string, s model.Service, given model.Log) {
		t.Helper()
		for _, logs := range []Logs{nil, {before.ID(): given, s.ID(): given}} {
			p := NewPlanner()
			p.Plan(config(before), Logs{before.ID(): log}, nil)
			if logs == nil {
				p.Plan(config(before), nil, nil)
			}
			table, report := p.Plan(config(s), logs, nil)
			wantTable, wantReport := Plan(config(s), logs, nil)
			if !reflect.DeepEqual(table, wantTable) || !reflect.DeepEqual(report, wantReport) {
				t.Errorf("another %s is not seen", what)
			}
		}
	}
	for i := range reflect.TypeFor[model.Service]().NumField() {
		s := base()
		makeOther(t, reflect.ValueOf(&s).Elem().Field(i))
		plans(t, reflect.TypeFor[model.Service]().Field(i).Name, s, log)
	}
	for i := range reflect.TypeFor[model.Backend]().NumField() {
		s := base()
		makeOther(t, reflect.ValueOf(&s.Backends[1]).Elem().Field(i))
		plans(t, "backend's "+reflect.TypeFor[model.Backend]().Field(i).Name, s, log)
	}
	more := base()
	more.Backends[0].Weight++
	announced, stepped, strained := log, log, log
	announced.Coming, stepped.Steps, strained.Strained = 1, nil, nil
	for what, given := range map[string]model.Log{
		"generation": history.Advance(log, &more, now.Add(time.Minute)), "notice": announced, "step": stepped, "strain": strained,
	} {
		plans(t, what, base(), given)
	}
}
