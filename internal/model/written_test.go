package model

import (
	"encoding/json"
	"strings"
	"testing"

	"weir.io/weir/lab/memlab"
)

// Sets of slots and lists of nothing, which take little to write.
func hostileTexts() map[string]string {
	sets := strings.Repeat(`{"used":"1048576 gaps "},`, 2000)
	kept := strings.Repeat(`{"kept":"1048576 gaps "},`, 2000)
	return map[string]string{
		"report of large sets":    `{"backend":"10.0.0.1","services":[` + sets[:len(sets)-1] + `]}`,
		"report of blanks":        `{"backend":"10.0.0.1","services":[{"used":"` + strings.Repeat(" ", 1<<20) + `"}]}`,
		"document of large sets":  `{"service":{},"log":{"generations":[` + kept[:len(kept)-1] + `]}}`,
		"document of no backends": `{"service":{"backends":[` + strings.Repeat("{},", 200000) + `{}]},"log":{}}`,
		"document of nulls":       `{"service":{"backends":[` + strings.Repeat("null,", 200000) + `{}]},"log":{}}`,
	}
}

// What may be allocated to read a report or a document that somebody else has written.
var writtenBound = memlab.Bound{PerByte: 200, AtLeast: 2*mostSlotBytes + 1<<20}

func TestHostileDocuments(t *testing.T) {
	for name, text := range hostileTexts() {
		writtenBound.Check(t, len(text), func() {
			if readWritten(text) == nil {
				t.Errorf("%s is read", name)
			}
		})
	}
}

// readWritten reads a text as what it may be.
func readWritten(text string) error {
	if strings.HasPrefix(text, `{"backend"`) {
		return json.Unmarshal([]byte(text), &AgentReport{})
	}
	return json.Unmarshal([]byte(text), &Document{})
}

// Whatever a report or document contains, reading it takes memory in proportion to its length.
func FuzzWrittenMemory(f *testing.F) {
	for _, text := range hostileTexts() {
		f.Add(text[:min(len(text), 2000)])
	}
	f.Add(`{"backend":"10.0.0.1","taken":"2026-01-02T03:04:05Z","services":[{"vip":"192.0.2.1","protocol":"tcp","port":"80","affinity":"flow","used":"16384 gaps AQ"}]}`)
	f.Add(`{"service":{"name":"a","backends":[{"address":"10.0.0.1"}]},"log":{"generations":[{"members":[{"backend":"10.0.0.1:0","weight":1}],"gone":["10.0.0.1:1"],"kept":"5 bits Hw"}]}}`)
	f.Fuzz(func(t *testing.T, text string) {
		writtenBound.Check(t, len(text), func() { _ = readWritten(text) })
	})
}
