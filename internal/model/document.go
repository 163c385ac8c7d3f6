package model

import (
	"bytes"
	"encoding/json"
	"fmt"
)

// Document is one service with its history.
type Document struct {
	Service Service
	Log     Log
}

// writtenDocument is a document as stores, and the clients that give directors their logs, have it.
type writtenDocument struct {
	Service Service `json:"service"`
	Log     Log     `json:"log"`
	// Affinities are those of the log's generations; none: all have the service's. So documents of
	// older versions, which knew one affinity per service, are read correctly, and older versions
	// can read new ones while all affinities are equal.
	Affinities []Affinity `json:"affinities,omitempty"`
}

// readDocument is a written document that is read.
type readDocument struct {
	Service    Service    `json:"service"`
	Log        readLog    `json:"log"`
	Affinities []Affinity `json:"affinities"`
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
	w := writtenDocument{Service: d.Service, Log: d.Log}
	others := false
	for _, g := range d.Log.Generations {
		w.Affinities = append(w.Affinities, g.Affinity)
		others = others || g.Affinity != d.Service.Affinity
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
		w.Log.Generations[i].Affinity = w.Service.Affinity
		if len(w.Affinities) > 0 {
			w.Log.Generations[i].Affinity = w.Affinities[i]
		}
	}
	// Decoders leave room to grow, and there may be a million backends.
	w.Service.Backends = exactly(w.Service.Backends)
	for i := range w.Log.Generations {
		w.Log.Generations[i].Members = exactly(w.Log.Generations[i].Members)
	}
	*d = Document{w.Service, w.Log}
	return nil
}

// exactly returns a slice that takes no more memory than its elements.
func exactly[T any](s []T) []T {
	if len(s) == cap(s) {
		return s
	}
	return append(make([]T, 0, len(s)), s...)
}
