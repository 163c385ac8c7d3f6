package packet

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"strings"
	"testing"

	"github.com/gopacket/gopacket"
)

// Equal fails the test unless the frames are the same, byte for byte; the
// message names the fields that differ.
func Equal(t testing.TB, got, want []byte) {
	t.Helper()
	if d := Diff(got, want); d != "" {
		t.Errorf("%s", d)
	}
}

// Diff returns "" for equal frames, else the fields in which they differ, the
// first byte that differs, and both frames.
func Diff(got, want []byte) string {
	if bytes.Equal(got, want) {
		return ""
	}
	var b strings.Builder
	gotHeaders, wantHeaders := decodeAll(got), decodeAll(want)
	for i := range max(len(gotHeaders), len(wantHeaders)) {
		switch {
		case i >= len(gotHeaders):
			fmt.Fprintf(&b, "  missing %s\n", wantHeaders[i])
		case i >= len(wantHeaders):
			fmt.Fprintf(&b, "  not wanted: %s\n", gotHeaders[i])
		default:
			diffFields(&b, gotHeaders[i], wantHeaders[i])
		}
	}
	at := 0
	for at < min(len(got), len(want)) && got[at] == want[at] {
		at++
	}
	return fmt.Sprintf("frames differ from byte %d (%#x) on: %d bytes, want %d\n%sgot\n%swant\n%s",
		at, at, len(got), len(want), b.String(), hex.Dump(clip(got)), hex.Dump(clip(want)))
}

// Describe returns a line per header and a hex dump.
func Describe(frame []byte) string {
	var b strings.Builder
	for _, h := range decodeAll(frame) {
		fmt.Fprintf(&b, "  %s\n", h)
	}
	return b.String() + hex.Dump(clip(frame))
}

// clip keeps failure messages about jumbo frames readable.
func clip(frame []byte) []byte { return frame[:min(len(frame), 256)] }

// described is a header's name and its fields as "Name=value".
type described struct {
	name   string
	fields []string
}

func (d described) String() string { return d.name + ": " + strings.Join(d.fields, " ") }

func decodeAll(frame []byte) []described {
	c := newCursor(frame)
	var all []described
	for {
		name := c.next.String()
		l := c.newLayer()
		if l == nil {
			return append(all, described{"payload", []string{fmt.Sprintf("Bytes=%d", len(c.rest))}})
		}
		if err := c.decode(l); err != nil {
			return append(all, described{name, []string{err.Error()}})
		}
		all = append(all, described{name, fields(l)})
	}
}

// fields takes apart what gopacket prints of a layer: "Name\t{A=1 B=2 ...}".
func fields(l layer) []string {
	var text string
	if g, ok := l.(*gue); ok {
		return []string{fmt.Sprintf("Control=%v", g.C), fmt.Sprintf("Protocol=%d", g.Protocol),
			fmt.Sprintf("Flags=%#x", g.Flags), fmt.Sprintf("Private=%x", g.Extensions)}
	}
	if e, ok := l.(*extension); ok {
		return []string{fmt.Sprintf("NextHeader=%d", e.NextHeader), fmt.Sprintf("Contents=%x", e.Contents)}
	}
	if full, ok := l.(gopacket.Layer); ok {
		text = gopacket.LayerString(full)
	}
	_, text, _ = strings.Cut(text, "{")
	var list []string
	for _, f := range strings.Fields(strings.TrimSuffix(text, "}")) {
		if !strings.HasPrefix(f, "Contents=") && !strings.HasPrefix(f, "Payload=") && strings.Contains(f, "=") {
			list = append(list, f)
		}
	}
	return list
}

func diffFields(b *strings.Builder, got, want described) {
	if got.name != want.name || len(got.fields) != len(want.fields) {
		if got.String() != want.String() {
			fmt.Fprintf(b, "  %s\n  want %s\n", got, want)
		}
		return
	}
	for i := range got.fields {
		if got.fields[i] != want.fields[i] {
			fmt.Fprintf(b, "  %s: %s, want %s\n", got.name, got.fields[i], want.fields[i])
		}
	}
}
