package traffic

import (
	"encoding/binary"
	"fmt"
)

// Stream is an endless sequence of bytes that both ends of a connection can make: a function of a
// seed. Bytes of another connection, of another place in this one, or of the other direction,
// differ from those that belong there.
type Stream struct {
	seed, offset uint64
}

// Up returns the stream of a connection's client.
func Up(id uint64) *Stream { return &Stream{seed: mix(2 * id)} }

// Down returns the stream of its server.
func Down(id uint64) *Stream { return &Stream{seed: mix(2*id + 1)} }

// mix is the finalizer of splitmix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number
// generators", OOPSLA 2014).
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// word returns the eight bytes that begin at a multiple of eight.
func (s *Stream) word(at uint64) uint64 { return mix(s.seed + at/wordSize) }

const wordSize = 8

// Fill writes the next bytes.
func (s *Stream) Fill(p []byte) {
	for len(p) > 0 {
		if within := s.offset % wordSize; within > 0 || len(p) < wordSize {
			var word [wordSize]byte
			binary.LittleEndian.PutUint64(word[:], s.word(s.offset))
			p = p[s.advance(copy(p, word[within:])):]
			continue
		}
		binary.LittleEndian.PutUint64(p, s.word(s.offset))
		p = p[s.advance(wordSize):]
	}
}

// Check returns an error if p does not have the next bytes.
func (s *Stream) Check(p []byte) error {
	for len(p) > 0 {
		within := s.offset % wordSize
		if within == 0 && len(p) >= wordSize && binary.LittleEndian.Uint64(p) == s.word(s.offset) {
			p = p[s.advance(wordSize):]
			continue
		}
		var word [wordSize]byte
		binary.LittleEndian.PutUint64(word[:], s.word(s.offset))
		want := word[within:]
		want = want[:min(len(want), len(p))]
		for i := range want {
			if p[i] != want[i] {
				return fmt.Errorf("%w: byte %d of the stream is %#02x, not %#02x", ErrWrongData, s.offset+uint64(i), p[i], want[i])
			}
		}
		p = p[s.advance(len(want)):]
	}
	return nil
}

// advance moves on by this many bytes, and returns how many.
func (s *Stream) advance(n int) int {
	s.offset += uint64(n)
	return n
}
