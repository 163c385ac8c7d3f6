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

// writtenDocument is a document as stores, and those who give directors their logs, have it.
type writtenDocument struct {
	Service Service `json:"service"`
	Log     Log     `json:"log"`
	// Affinities are those of the log's generations; none: all have the service's. So what
	// versions wrote that knew of one affinity only is read as they meant it, and they read
	// what is written while there is one.
	Affinities []Affinity `json:"affinities,omitempty"`
}

// readDocument is a written document that is read: its sets of slots are texts first, so that it is
// known what they would take.
type readDocument struct {
	Service Service `json:"service"`
	Log     struct {
		Generations []struct {
			readGeneration
			Kept *string `json:"kept"`
		} `json:"generations"`
		Steps    []Step   `json:"steps"`
		Strained []Strain `json:"strained"`
	} `json:"log"`
	Affinities []Affinity `json:"affinities"`
}

// readGeneration has a generation's fields, of which one that hides Kept is not read by them.
type readGeneration Generation

// written returns what was read.
func (r *readDocument) written() (w writtenDocument, err error) {
	w = writtenDocument{Service: r.Service, Log: Log{Steps: r.Log.Steps, Strained: r.Log.Strained}, Affinities: r.Affinities}
	texts := make([]*string, len(r.Log.Generations))
	for i := range texts {
		texts[i] = r.Log.Generations[i].Kept
	}
	sets, err := readSlotSets(texts)
	if err != nil {
		return w, fmt.Errorf("service %q: the log %w", r.Service.Name, err)
	}
	if r.Log.Generations != nil {
		w.Log.Generations = make([]Generation, len(sets))
	}
	for i := range sets {
		w.Log.Generations[i] = Generation(r.Log.Generations[i].readGeneration)
		w.Log.Generations[i].Kept = sets[i]
	}
	return w, nil
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
	if err := checkObjects(text); err != nil {
		return fmt.Errorf("a document %w", err)
	}
	var read readDocument
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&read); err != nil {
		return err
	}
	w, err := read.written()
	if err != nil {
		return err
	}
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

// exactly returns a slice that takes no more memory than what is in it.
func exactly[T any](s []T) []T {
	if len(s) == cap(s) {
		return s
	}
	return append(make([]T, 0, len(s)), s...)
}
