package main

import (
	"cmp"
	"fmt"
	"slices"

	"weir.io/weir/internal/model"
)

// topRates is what a director forwarded between two readings.
type topRates struct {
	Seconds  float64           `json:"seconds"` // between them
	CPUs     []model.CPUStatus `json:"cpus"`    // in the last 10 seconds
	Services []topService      `json:"services"`
}

// topRate is per second.
type topRate struct {
	Connections float64 `json:"connections"`
	Packets     float64 `json:"packets"`
	Bytes       float64 `json:"bytes"`
}

type topService struct {
	Name string `json:"name"`
	topRate
	Dropped  float64      `json:"dropped"` // packets
	Active   int          `json:"active"`  // backends that get new connections
	Health   string       `json:"health,omitempty"`
	Backends []topBackend `json:"backends"`
}

type topBackend struct {
	Name  string             `json:"name"`
	State model.BackendState `json:"state"`
	topRate
	Share *float64 `json:"share"` // of the service's new connections, 0 to 1; null: there were none
	Slots float64  `json:"slots"` // share of the service's slots, 0 to 1
}

// counts are the counters of a service or of a backend.
type counts struct{ connections, packets, bytes uint64 }

// since returns the counts since an earlier reading. A service or backend that was not in it, or
// has smaller counts now, began anew: all its counts came since.
func (now topReading) since(before topReading) topRates {
	seconds := now.at.Sub(before.at).Seconds()
	r := topRates{Seconds: seconds, CPUs: now.cpus, Services: []topService{}}
	rate := func(now, before counts) topRate {
		if now.packets < before.packets {
			before = counts{}
		}
		per := func(now, before uint64) float64 { return float64(now-min(before, now)) / seconds }
		return topRate{per(now.connections, before.connections), per(now.packets, before.packets), per(now.bytes, before.bytes)}
	}
	services, backends := map[string]model.ServiceStatus{}, map[[2]string]model.BackendStatus{}
	for _, s := range before.services {
		services[s.Name] = s
		for _, b := range s.Backends {
			backends[[2]string{s.Name, b.Name}] = b
		}
	}
	for _, s := range now.services {
		old := services[s.Name]
		of := topService{Name: s.Name, Active: active(s.Backends), Health: healthy(s.Health), Backends: []topBackend{},
			topRate: rate(counts{s.Opened, s.Packets, s.Bytes}, counts{old.Opened, old.Packets, old.Bytes}),
			Dropped: float64(s.Dropped-min(old.Dropped, s.Dropped)) / seconds}
		opened := 0.0
		for _, b := range s.Backends {
			old := backends[[2]string{s.Name, b.Name}]
			of.Backends = append(of.Backends, topBackend{Name: b.Name, State: b.State, Slots: part(float64(b.Slots), float64(s.Slots)),
				topRate: rate(counts{b.Opened, b.Packets, b.Bytes}, counts{old.Opened, old.Packets, old.Bytes})})
			opened += of.Backends[len(of.Backends)-1].Connections
		}
		for i := range of.Backends {
			if opened > 0 {
				share := of.Backends[i].Connections / opened
				of.Backends[i].Share = &share
			}
		}
		r.Services = append(r.Services, of)
	}
	return r
}

// part is the fraction of all that something is; 0 if all is 0.
func part(of, all float64) float64 {
	if all == 0 {
		return 0
	}
	return of / all
}

// orders are the values by which services are sorted, the largest first; equal ones are in the
// order of names.
var orders = map[string]func(topService) float64{
	"connections": func(s topService) float64 { return s.Connections },
	"packets":     func(s topService) float64 { return s.Packets },
	"bytes":       func(s topService) float64 { return s.Bytes },
	"dropped":     func(s topService) float64 { return s.Dropped },
	"name":        func(topService) float64 { return 0 },
}

func (r topRates) order(by string) {
	slices.SortStableFunc(r.Services, func(a, b topService) int {
		return cmp.Or(-cmp.Compare(orders[by](a), orders[by](b)), cmp.Compare(a.Name, b.Name))
	})
}

func (r topRates) table(t *table, backends bool) {
	cpus := ""
	for _, c := range r.CPUs {
		cpus += fmt.Sprintf("  cpu %d %.0f %%", c.CPU, 100*c.Utilization)
	}
	t.line("per second" + cpus)
	t.line("")
	heads := []any{"SERVICE", "ACTIVE", "HEALTHY", "CONNECTIONS", "PACKETS", "BITS", "DROPPED"}
	if backends {
		heads = []any{"SERVICE", "BACKEND", "STATE", "SHARE", "SLOTS", "CONNECTIONS", "PACKETS", "BITS", "DROPPED"}
	}
	t.row(heads...)
	for _, s := range r.Services {
		if !backends {
			t.row(s.Name, s.Active, s.Health, short(s.Connections), short(s.Packets), short(8*s.Bytes), short(s.Dropped))
			continue
		}
		t.row(s.Name, "", "", "", "", short(s.Connections), short(s.Packets), short(8*s.Bytes), short(s.Dropped))
		for _, b := range s.Backends {
			t.row("", b.Name, b.State, b.share(), b.slots(), short(b.Connections), short(b.Packets), short(8*b.Bytes), "")
		}
	}
}

// share is which part of new connections the backend got; empty if there were none.
func (b topBackend) share() string {
	if b.Share == nil {
		return ""
	}
	return percent(*b.Share)
}

// slots is which part of the ring the backend owns. Connections for a backend that is down go to
// its slots' backups.
func (b topBackend) slots() string {
	if !b.State.Alive() && b.Slots > 0 {
		return "backups"
	}
	return percent(b.Slots)
}

func percent(part float64) string { return fmt.Sprintf("%.1f%%", 100*part) }

// short writes a number with three digits or more and a prefix of the SI.
func short(n float64) string {
	for _, prefix := range []string{"", "k", "M", "G"} {
		switch {
		case n < 9.995 && prefix != "":
			return fmt.Sprintf("%.2f%s", n, prefix)
		case n < 99.95 && (prefix != "" || n != float64(int(n))):
			return fmt.Sprintf("%.1f%s", n, prefix)
		case n < 999.5:
			return fmt.Sprintf("%.0f%s", n, prefix)
		}
		n /= 1000
	}
	return fmt.Sprintf("%.1fT", n)
}
