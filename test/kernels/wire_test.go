package main

import (
	"bytes"
	"net"
	"testing"
)

// A guest gets the frame that it asks for, so many times, and nothing for other frames.
func TestWire(t *testing.T) {
	card, end, err := newWire()
	if err != nil {
		t.Fatal(err)
	}
	defer card.Close()
	defer end()
	guest, err := net.FileConn(card)
	if err != nil {
		t.Fatal(err)
	}
	defer guest.Close()
	header := append(bytes.Repeat([]byte{0xff}, 6), 0x52, 0x54, 0, 0, 0, 1)
	for _, sent := range [][]byte{
		append(bytes.Clone(header), 0x86, 0xdd, 0, 5, 0, 1, 'x'),
		append(bytes.Clone(header), 0x88, 0xb5, 0, 5, 0, 9, 'x'), // cut
		append(bytes.Clone(header), 0x88, 0xb5, 0),
		append(bytes.Clone(header), 0x88, 0xb5, 0, 3, 0, 5, 'f', 'r', 'a', 'm', 'e', 0, 0),
		append(bytes.Clone(header), 0x88, 0xb5, 0, 1, 0, 4, 'l', 'a', 's', 't'),
	} {
		if _, err := guest.Write(sent); err != nil {
			t.Fatal(err)
		}
	}
	buffer := make([]byte, longestFrame)
	for _, want := range []string{"frame", "frame", "frame", "last"} {
		n, err := guest.Read(buffer)
		if err != nil || string(buffer[:n]) != want {
			t.Fatalf("the wire brings %q (%v), want %q", buffer[:n], err, want)
		}
	}
}
