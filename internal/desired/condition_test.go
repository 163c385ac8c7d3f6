package desired

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"weir.io/weir/internal/model"
	"weir.io/weir/internal/store"
)

// beside is a set of one service with n backends, beside that of the file.
func beside(n int) []model.Service {
	s := web("b", n)
	s.VIP = netip.MustParseAddr("192.0.2.2")
	return config(s).Services
}

func TestConditions(t *testing.T) {
	inBubble(t, func(t *testing.T, d *director, _ string) {
		d.set(t, web("a", 2))
		put := func(n int, when model.SetCondition) (model.SetChange, error) {
			return d.Put(t.Context(), "cli", beside(n), when)
		}
		if _, err := put(2, model.SetCondition{Some: true}); !errors.Is(err, ErrOtherSet) {
			t.Errorf("a set that there is not is replaced: %v", err)
		}
		first, err := put(2, model.SetCondition{None: true})
		if err != nil || first.Tag != store.TagOf(beside(2)) {
			t.Fatalf("the first set: %+v, %v", first, err)
		}
		for _, test := range []struct {
			when model.SetCondition
			good bool
		}{
			{model.SetCondition{None: true}, false}, {model.SetCondition{Tags: []string{"x"}}, false},
			{model.SetCondition{Tags: []string{"x", first.Tag}}, true}, {model.SetCondition{Tags: []string{first.Tag}}, false},
			{model.SetCondition{Some: true}, true}, {model.SetCondition{}, true},
		} {
			if _, err := put(3, test.when); (err == nil) != test.good || err != nil && !errors.Is(err, ErrOtherSet) {
				t.Errorf("a put with %+v gives %v", test.when, err)
			}
		}
		if got := d.Sets().Sets["cli"]; got.Tag() != store.TagOf(beside(3)) {
			t.Errorf("what is left is %+v", got)
		}
	})
}

// Several writers begin from the same set and put at the same time: one of them wins, and
// the others are told, even if their changes would have been the same. Each adds a backend
// to what it has read, and tries again until it is in: none is lost.
func TestConcurrentWritersLoseNothing(t *testing.T) {
	inBubble(t, func(t *testing.T, d *director, _ string) {
		d.set(t, web("a", 2))
		const writers = 12
		if _, err := d.Put(t.Context(), "cli", beside(1), model.SetCondition{}); err != nil {
			t.Fatal(err)
		}
		var refused int
		var mu sync.Mutex
		var writing sync.WaitGroup
		for i := range writers {
			writing.Go(func() {
				for {
					set := d.Sets().Sets["cli"]
					services := set.Services()
					b := model.NewBackend()
					b.Address = netip.AddrFrom4([4]byte{10, 1, 0, byte(1 + i)})
					services[0].Backends = append(slices.Clone(services[0].Backends), b)
					c := config(services...)
					c.Services[0].Retention = services[0].Retention
					_, err := d.Put(t.Context(), "cli", c.Services, model.SetCondition{Tags: []string{set.Tag()}})
					if err == nil {
						return
					}
					if !errors.Is(err, ErrOtherSet) {
						t.Error(err)
						return
					}
					mu.Lock()
					refused++
					mu.Unlock()
					pass(time.Millisecond)
				}
			})
		}
		writing.Wait()
		if got := len(d.Sets().Sets["cli"].Documents[0].Service.Backends); got != 1+writers || refused == 0 {
			t.Errorf("%d backends are there, want %d; %d writers were told that they were late", got, 1+writers, refused)
		}
	})
}

// In one batch each is judged by what those before it have made of the set.
func TestInTurn(t *testing.T) {
	one, two, three := beside(1), beside(2), beside(3)
	set := store.Set{Documents: []store.Document{{Service: one[0]}}}
	tag := func(services []model.Service) model.SetCondition {
		return model.SetCondition{Tags: []string{store.TagOf(services)}}
	}
	puts := []*proposal{{services: two, when: tag(one)}, {services: three, when: tag(one)}, {services: three, when: tag(two)}, {services: one, when: model.SetCondition{None: true}}}
	services, replaced := inTurn(set, true, puts)
	var errs []string
	for _, p := range puts {
		errs = append(errs, fmt.Sprint(p.err == nil))
	}
	if got := strings.Join(errs, " "); got != "true false true false" || !replaced || store.TagOf(services) != store.TagOf(three) {
		t.Errorf("of the four puts went well: %s; there are %d backends", got, len(services[0].Backends))
	}
	if _, replaced := inTurn(set, true, puts[2:]); replaced {
		t.Error("puts of which none may be made replace the set")
	}
}

// A set that was read without its keys can be written: the keys stay, also in a
// service that has another place or name, and no service gets another one's keys.
func TestHiddenKeysStay(t *testing.T) {
	secret := model.QUICKey{1, 2, 3}
	before := beside(2)
	before[0].QUIC = []model.QUICConfig{{ID: 3, Key: secret, NonceLength: 8}}
	read := model.HideKeys(before)
	if read[0].QUIC[0].Key != model.HiddenKey || before[0].QUIC[0].Key != secret {
		t.Fatalf("what is read has the key %x", [16]byte(read[0].QUIC[0].Key))
	}
	read[0].Name = "renamed"
	got, err := reveal(read, before)
	if err != nil || got[0].QUIC[0].Key != secret || read[0].QUIC[0].Key != model.HiddenKey {
		t.Errorf("what is written has the key %x: %v", [16]byte(got[0].QUIC[0].Key), err)
	}
	for what, change := range map[string]func(*model.Service){
		"another service":       func(s *model.Service) { s.VIP = netip.MustParseAddr("192.0.2.3") },
		"another configuration": func(s *model.Service) { s.QUIC[0].ID = 4 },
	} {
		other := model.HideKeys(before)
		change(&other[0])
		if _, err := reveal(other, before); err == nil || !strings.Contains(err.Error(), "services[0].quic[0].key: ") {
			t.Errorf("%s gets the key: %v", what, err)
		}
	}
}
