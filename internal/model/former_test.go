package model_test

import (
	"encoding/json"
	"errors"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"

	"weir.io/weir/internal/model"
)

// Directors of older versions read the same stores, and refuse keys that they do not know.
func TestStoresHaveTheFormerNames(t *testing.T) {
	d := model.Document{Service: model.Service{Name: "web", VIP: netip.MustParseAddr("203.0.113.10"), Protocol: model.TCP, Backends: []model.Backend{},
		Retention: model.Duration(time.Minute), MaxRetention: model.Duration(time.Hour)}}
	text, err := json.Marshal(d)
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{`"drain":"1m0s"`, `"max-drain":"1h0m0s"`} {
		if !strings.Contains(string(text), key) {
			t.Errorf("%s does not have %s", text, key)
		}
	}
	if strings.Contains(string(text), "retention") {
		t.Errorf("%s has a key that older versions do not know", text)
	}
	now := strings.NewReplacer("max-drain", "max-retention", "drain", "retention").Replace(string(text))
	for _, text := range []string{string(text), now} {
		var read model.Document
		if err := json.Unmarshal([]byte(text), &read); err != nil {
			t.Errorf("%s is not read: %v", text, err)
		} else if read.Service.Retention != d.Service.Retention || read.Service.MaxRetention != d.Service.MaxRetention {
			t.Errorf("of %s are read %v and %v", text, read.Service.Retention, read.Service.MaxRetention)
		}
	}
}

// What a service says elsewhere is no key: names of services and backends are anybody's choice.
func TestStoredServicesComeBack(t *testing.T) {
	least := uint32(1)
	for _, name := range []string{"retention", "drain", `"max-retention":`, "web"} {
		s := model.Service{Name: name, VIP: netip.MustParseAddr("203.0.113.10"), Protocol: model.TCP, MinHealthy: &least,
			Retention: model.Duration(time.Minute), MaxRetention: model.Duration(time.Hour),
			Backends: []model.Backend{{Name: name, Address: netip.MustParseAddr("10.0.0.1"), State: model.Active}},
			Health:   &model.HealthCheck{Kind: model.CheckHTTP, HTTP: &model.HealthHTTP{HealthRequest: model.HealthRequest{Host: name}}}}
		for written, v := range map[string]any{"by the former keys": model.StoredService(s), "by today's": s} {
			text, err := json.Marshal(v)
			if err != nil {
				t.Fatal(err)
			}
			var stored model.StoredService
			var sent model.Service
			if err := errors.Join(json.Unmarshal(text, &stored), json.Unmarshal(text, &sent)); err != nil {
				t.Errorf("written %s, %s is not read: %v", written, text, err)
			}
			if !reflect.DeepEqual(model.Service(stored), s) || !reflect.DeepEqual(sent, s) {
				t.Errorf("written %s, %s is read as %+v and %+v", written, text, stored, sent)
			}
		}
	}
	var s model.Service
	if err := json.Unmarshal([]byte(`{"name":"web","retention":"1m","drain":"1m"}`), &s); err == nil {
		t.Error("a service with both names of a key is accepted")
	}
	if err := json.Unmarshal([]byte(`{"name":"web","drain":"1m","max-retention":"1h","key-of-a-later-version":1}`), &s); err != nil || s.Retention != model.Duration(time.Minute) || s.MaxRetention != model.Duration(time.Hour) {
		t.Errorf("a service of mixed names is %+v: %v", s, err)
	}
	if err := json.Unmarshal([]byte(`{"name":"web","key-of-a-later-version":1}`), new(model.StoredService)); err == nil {
		t.Error("a stored service with an unknown key is accepted")
	}
}

// All fields but those with former names are stored by their own.
func TestStoredServiceHasTheSameKeys(t *testing.T) {
	keys := func(v any) map[string]bool {
		text, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		var fields map[string]json.RawMessage
		if err := json.Unmarshal(text, &fields); err != nil {
			t.Fatal(err)
		}
		is := map[string]bool{}
		for key := range fields {
			is[key] = true
		}
		return is
	}
	least := uint32(1)
	fallback := model.GUE
	s := model.Service{Name: "web", Fallback: &fallback, SNAT: true, AskRedirect: true, RingSize: 7, MinHealthy: &least,
		Retention: 1, MaxRetention: 2, KernelSources: true, RedirectUnprobed: true, QUIC: []model.QUICConfig{{}}, Health: &model.HealthCheck{}}
	want := keys(s)
	for before, now := range model.FormerServiceKeys {
		if !want[now] {
			t.Errorf("no service has the key %s", now)
		}
		delete(want, now)
		want[before] = true
	}
	if got := keys(model.StoredService(s)); !reflect.DeepEqual(got, want) {
		t.Errorf("stored are %v, want %v", got, want)
	}
}
