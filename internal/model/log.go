package model

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"time"
	"unsafe"
)

// ServiceID is what packets name a service by. A service whose ID changes is another service, with
// a log of its own.
type ServiceID struct {
	Segment  Segment    `json:"segment,omitzero"`
	VIP      netip.Addr `json:"vip"`
	Protocol Protocol   `json:"protocol"`
	Port     PortRange  `json:"port"`
}

// ID returns what packets name the service by.
func (s *Service) ID() ServiceID {
	return ServiceID{s.Segment, s.VIP, s.Protocol, s.Port}
}

// Salt returns what the hashes of the service's flows begin with. It is a function of
// what a packet names the service by, so that it survives a restart, a new name and new
// backends, and agents compute the same.
func (id ServiceID) Salt() uint64 {
	text := binary.BigEndian.AppendUint32(nil, id.Segment.Key())
	text = append(text, byte(id.Protocol))
	text = binary.BigEndian.AppendUint16(text, id.Port.First)
	text = binary.BigEndian.AppendUint16(text, id.Port.Last)
	text = append(text, id.VIP.AsSlice()...)
	sum := sha256.Sum256(text)
	return binary.LittleEndian.Uint64(sum[:])
}

// Log is the generations of a service that some connection may still need, newest
// first. With the service's backends it is all that the service's rows depend on, so
// directors with equal logs have equal rows.
type Log struct {
	Generations []Generation `json:"generations"`
	// Steps has the backends that do not have their whole share yet, in the order of their
	// addresses and ports (history.Ramp).
	Steps []Step `json:"steps,omitempty"`
	// Strained has the backends that keep only a part of their share, in the same order
	// (history.Relieve).
	Strained []Strain `json:"strained,omitempty"`
	// Coming is how many of the newest generations place no connections yet: rows name their
	// owners, and the newest of the other generations places connections. It follows from their
	// times and the clock, and is not stored.
	Coming int `json:"-"`
}

// Generation is a version of a service's membership and weights: just enough to make its
// ring again.
type Generation struct {
	Number uint64    `json:"number"` // larger than the numbers of all older generations
	Since  time.Time `json:"since"`  // when it became the newest, UTC
	// From is when it first places connections, UTC; zero: when it became the newest. If
	// generations between it and the next older one have left the log, it is when the oldest of
	// them replaced that older one.
	From time.Time `json:"from,omitzero"`
	// Held is the last time, UTC, at which it still placed connections although a newer one had
	// replaced it: in slots that the newer ones had to wait for.
	Held  time.Time `json:"held,omitzero"`
	Slots uint32    `json:"slots"` // the ring's size, a prime
	// Policy is how it places connections: p2c places them on backups as well as on owners.
	Policy Policy `json:"policy,omitzero"`
	// Affinity is what chose its slots. It is stored beside the log, and only where it is not the
	// service's (store.Document).
	Affinity Affinity `json:"-"`
	Members  []Member `json:"members"`
	// Gone has the members that have been removed from the service at some time since. One that
	// comes back does not come back into this generation: its connections are lost.
	Gone []netip.AddrPort `json:"gone,omitempty"`
	// Kept has the slots that connections may still need this generation in, by what agents report;
	// nil: all. It only shrinks, except for the newest generation whose members are not all gone:
	// that one places connections, and needs all slots.
	Kept *SlotSet `json:"kept,omitempty"`
}

// Places returns when the generation first places connections.
func (g *Generation) Places() time.Time {
	if g.From.IsZero() {
		return g.Since
	}
	return g.From
}

// Member is a backend that owns slots of a generation. Members are in the order of their addresses
// and ports, without duplicates.
type Member struct {
	Backend netip.AddrPort `json:"backend"` // port 0: the packet's own
	Weight  uint16         `json:"weight"`  // more than 0
	Tier    uint8          `json:"tier,omitempty"`
}

// Document is one service with its history.
type Document struct {
	Service Service
	Log     Log
}

// writtenDocument is a document as stores, and the clients that give directors their logs, have it.
type writtenDocument struct {
	Service StoredService `json:"service"`
	Log     Log           `json:"log"`
	// Affinities are those of the log's generations; none: all have the service's. So documents of
	// older versions, which knew one affinity per service, are read correctly, and older versions
	// can read new ones while all affinities are equal.
	Affinities []Affinity `json:"affinities,omitempty"`
}

// readDocument is a written document that is read.
type readDocument struct {
	Service    StoredService `json:"service"`
	Log        readLog       `json:"log"`
	Affinities []Affinity    `json:"affinities"`
}

// readLog is a log that is read: its sets of slots are texts at first, so that their size can be
// checked.
type readLog struct {
	Generations []struct {
		readGeneration
		Kept *string `json:"kept"`
	} `json:"generations"`
	Steps    []Step   `json:"steps"`
	Strained []Strain `json:"strained"`
}

// readGeneration has a generation's fields; readLog reads Kept in another field, which hides this
// one.
type readGeneration Generation

// log returns the log that was read.
func (r *readLog) log() (Log, error) {
	l := Log{Steps: r.Steps, Strained: r.Strained}
	texts := make([]*string, len(r.Generations))
	for i := range texts {
		texts[i] = r.Generations[i].Kept
	}
	sets, err := readSlotSets(texts)
	if err != nil {
		return l, fmt.Errorf("the log %w", err)
	}
	if r.Generations != nil {
		l.Generations = make([]Generation, len(sets))
	}
	for i := range sets {
		l.Generations[i] = Generation(r.Generations[i].readGeneration)
		l.Generations[i].Kept = sets[i]
	}
	return l, nil
}

// UnmarshalJSON reads a log that another program may have written, perhaps with fields that this
// version does not know.
func (l *Log) UnmarshalJSON(text []byte) error {
	if err := CheckObjects(text); err != nil {
		return fmt.Errorf("a log %w", err)
	}
	var read readLog
	if err := json.Unmarshal(text, &read); err != nil {
		return err
	}
	log, err := read.log()
	if err == nil {
		*l = log
	}
	return err
}

// MarshalJSON writes the document.
func (d Document) MarshalJSON() ([]byte, error) {
	w := writtenDocument{Service: StoredService(d.Service), Log: d.Log}
	others := false
	for _, g := range d.Log.Generations {
		w.Affinities = append(w.Affinities, g.Affinity)
		others = others || g.Affinity != d.Service.PlacedBy()
	}
	if !others {
		w.Affinities = nil
	}
	return json.Marshal(w)
}

// UnmarshalJSON reads what MarshalJSON wrote, and nothing else.
func (d *Document) UnmarshalJSON(text []byte) error {
	if err := CheckObjects(text); err != nil {
		return fmt.Errorf("a document %w", err)
	}
	var read readDocument
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&read); err != nil {
		return err
	}
	log, err := read.Log.log()
	if err != nil {
		return fmt.Errorf("service %q: %w", read.Service.Name, err)
	}
	w := writtenDocument{Service: read.Service, Log: log, Affinities: read.Affinities}
	if n := len(w.Affinities); n > 0 && n != len(w.Log.Generations) {
		return fmt.Errorf("service %q: %d affinities of %d generations", w.Service.Name, n, len(w.Log.Generations))
	}
	for i := range w.Log.Generations {
		w.Log.Generations[i].Affinity = (*Service)(&w.Service).PlacedBy()
		if len(w.Affinities) > 0 {
			w.Log.Generations[i].Affinity = w.Affinities[i]
		}
	}
	// Decoders leave room to grow, and there may be a million backends.
	w.Service.Backends = exactly(w.Service.Backends)
	for i := range w.Log.Generations {
		w.Log.Generations[i].Members = exactly(w.Log.Generations[i].Members)
	}
	*d = Document{Service(w.Service), w.Log}
	return nil
}

// exactly returns a slice that takes no more memory than its elements.
func exactly[T any](s []T) []T {
	if len(s) == cap(s) {
		return s
	}
	return append(make([]T, 0, len(s)), s...)
}

// Size returns about how many bytes the document takes.
func (d *Document) Size() int {
	size := SizeOf([]Service{d.Service}) + len(d.Log.Generations)*int(unsafe.Sizeof(Generation{})) +
		len(d.Log.Steps)*int(unsafe.Sizeof(Step{})) + len(d.Log.Strained)*int(unsafe.Sizeof(Strain{}))
	for i := range d.Log.Generations {
		g := &d.Log.Generations[i]
		size += len(g.Members)*int(unsafe.Sizeof(Member{})) + len(g.Gone)*int(unsafe.Sizeof(g.Gone[0]))
		if g.Kept != nil {
			size += g.Kept.Size() / 8
		}
	}
	return size
}

// ValidateDocuments returns what is wrong with services and the logs that a client gives with them,
// by fields such as documents[3].log.generations[0].slots, and fills in the services' defaults.
func ValidateDocuments(documents []Document) error {
	return ValidateChangedDocuments(documents, func(int) bool { return false })
}

// ValidateChangedDocuments does what ValidateDocuments does for documents of which some are known
// to be valid by themselves, and to have their defaults.
func ValidateChangedDocuments(documents []Document, known func(i int) bool) error {
	c := Config{Services: make([]Service, len(documents))}
	for i := range documents {
		c.Services[i] = documents[i].Service
	}
	c.Director.Limits = MostLimits
	c.SetDefaults()
	if err := c.ValidateChanged(len(documents), known); err != nil {
		return err
	}
	var errs FieldErrors
	for i := range documents {
		if known(i) {
			continue
		}
		documents[i].Service = c.Services[i]
		if path, problem := documents[i].Log.problem(); problem != "" {
			errs = append(errs, FieldError{Path: fmt.Sprintf("documents[%d].log%s", i, path), Problem: problem})
		}
	}
	if len(errs) > 0 {
		return errs
	}
	return nil
}

// Validate returns what is wrong with a log that another program has written, by fields such as
// log.generations[0].slots.
func (l *Log) Validate() error {
	if path, problem := l.problem(); problem != "" {
		return FieldErrors{{Path: "log" + path, Problem: problem}}
	}
	return nil
}

// problem says what is wrong with a log so that rings could not be made from it: weir writes no
// such log.
func (l *Log) problem() (path, problem string) {
	if len(l.Generations) == 0 {
		return ".generations", "is empty; the newest one places connections"
	}
	for i := range l.Generations {
		g := &l.Generations[i]
		path := fmt.Sprintf(".generations[%d]", i)
		switch {
		case g.Number == 0 || i > 0 && g.Number >= l.Generations[i-1].Number:
			return path + ".number", "is not below that of the generation before; the newest comes first, and 1 is the oldest"
		case g.Slots > MaxRingSize || !isPrime(g.Slots):
			return path + ".slots", fmt.Sprintf("%d is not a prime up to %d", g.Slots, MaxRingSize)
		case !slices.IsSortedFunc(g.Members, byBackend):
			return path + ".members", "are not in the order of their addresses and ports"
		case g.Kept != nil && g.Kept.Size() != int(g.Slots):
			return path + ".kept", "is not of so many slots"
		}
		for n := range g.Members {
			switch m := &g.Members[n]; {
			case !m.Backend.Addr().IsValid():
				return fmt.Sprintf("%s.members[%d].backend", path, n), "is no address with a port"
			case m.Weight == 0:
				return fmt.Sprintf("%s.members[%d].weight", path, n), "is 0; who owns no slots is no member"
			case m.Tier > MaxTier:
				return fmt.Sprintf("%s.members[%d].tier", path, n), fmt.Sprintf("%d is above the last tier, %d", m.Tier, MaxTier)
			case n > 0 && byBackend(g.Members[n-1], *m) == 0:
				return fmt.Sprintf("%s.members[%d].backend", path, n), "is there twice"
			}
		}
	}
	return "", ""
}

func byBackend(a, b Member) int { return a.Backend.Compare(b.Backend) }
