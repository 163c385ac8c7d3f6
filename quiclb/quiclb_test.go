package quiclb

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
)

// random fills bytes from a seeded source.
func random(r *rand.Rand, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

// Every pair of lengths, with and without a key, is read as it was written, also
// with bytes of the server's own behind it.
func TestEveryLength(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for sid := MinServerIDLength; sid+MinNonceLength <= MaxLength; sid++ {
		for nonce := MinNonceLength; sid+nonce <= MaxLength; nonce++ {
			for _, key := range [][]byte{nil, random(r, KeyLength)} {
				c := mustNew(t, Config{ID: uint8(sid % (MaxID + 1)), ServerIDLength: sid, NonceLength: nonce, Key: key})
				for range 20 {
					roundTrip(t, c, random(r, sid), random(r, nonce), random(r, r.IntN(4)))
				}
			}
		}
	}
}

func roundTrip(t *testing.T, c *Codec, serverID, nonce, behind []byte) {
	t.Helper()
	cid, err := c.Encode(serverID, nonce)
	if err != nil {
		t.Fatal(err)
	}
	if len(cid) != c.Length() || int(cid[0]&lengthMask) != len(cid)-1 || cid[0]>>idShift != c.config.ID {
		t.Fatalf("%x of configuration %+v says neither its length nor its configuration", cid, c.config)
	}
	before := bytes.Clone(cid)
	got, err := c.Decode(append(bytes.Clone(cid), behind...))
	if err != nil || !bytes.Equal(got, serverID) {
		t.Fatalf("configuration %+v: %x decodes to %x (%v), want %x", c.config, cid, got, err, serverID)
	}
	if _, err := c.Decode(cid); err != nil || !bytes.Equal(cid, before) {
		t.Fatalf("Decode changed its input %x to %x (%v)", before, cid, err)
	}
	if _, err := c.Decode(cid[:len(cid)-1]); !errors.Is(err, ErrUnroutable) {
		t.Errorf("%x without its last byte: error %v, want ErrUnroutable", cid, err)
	}
}

// With a key, one server's connection IDs have nothing in common that its server ID
// explains: neither half stays the same when only the nonce changes.
func TestEncryptedServerIDIsHidden(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for _, lengths := range [][2]int{{4, 5}, {8, 8}, {9, 10}, {10, 5}} {
		c := mustNew(t, Config{ServerIDLength: lengths[0], NonceLength: lengths[1], Key: random(r, KeyLength)})
		serverID := random(r, lengths[0])
		g, err := NewGenerator(c, serverID)
		if err != nil {
			t.Fatal(err)
		}
		seen := map[string]bool{}
		for range 50 {
			cid, err := g.Generate()
			if err != nil {
				t.Fatal(err)
			}
			if bytes.Contains(cid, serverID) {
				t.Errorf("%x has server ID %x in it", cid, serverID)
			}
			seen[string(cid[1:1+lengths[0]])] = true
		}
		if len(seen) < 49 {
			t.Errorf("lengths %v: only %d of 50 connection IDs begin differently", lengths, len(seen))
		}
	}
}

func TestNewRefuses(t *testing.T) {
	for _, test := range []struct {
		config Config
		says   string
	}{
		{Config{ID: 7, ServerIDLength: 4, NonceLength: 4}, "configuration ID 7 is out of range 0 to 6"},
		{Config{ServerIDLength: 0, NonceLength: 4}, "a server ID of 0 bytes"},
		{Config{ServerIDLength: 1, NonceLength: 3}, "a nonce of 3 bytes"},
		{Config{ServerIDLength: 10, NonceLength: 10}, "20 bytes together"},
		{Config{ServerIDLength: 1, NonceLength: 4, Key: make([]byte, 15)}, "a key of 15 bytes"},
		{Config{ServerIDLength: 1, NonceLength: 4, Key: make([]byte, 32)}, "a key of 32 bytes"},
	} {
		if _, err := New(test.config); err == nil || !strings.Contains(err.Error(), test.says) {
			t.Errorf("%+v: error %v, want one that says %q", test.config, err, test.says)
		}
	}
	c := mustNew(t, Config{ServerIDLength: 2, NonceLength: 4})
	if _, err := c.Encode(make([]byte, 3), make([]byte, 4)); err == nil {
		t.Error("a server ID of the wrong length was encoded")
	}
	if _, err := c.Encode(make([]byte, 2), make([]byte, 5)); err == nil {
		t.Error("a nonce of the wrong length was encoded")
	}
	if _, err := NewGenerator(c, make([]byte, 1)); err == nil {
		t.Error("a generator took a server ID of the wrong length")
	}
}

func TestCodecs(t *testing.T) {
	a := Config{ID: 0, ServerIDLength: 2, NonceLength: 4}
	b := Config{ID: 5, ServerIDLength: 3, NonceLength: 5, Key: bytes.Repeat([]byte{7}, KeyLength)}
	if _, err := NewCodecs(a, a); err == nil {
		t.Error("two configurations with one number were taken")
	}
	if _, err := NewCodecs(Config{ID: 9}); err == nil {
		t.Error("a configuration that is out of bounds was taken")
	}
	all, err := NewCodecs(a, b)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []Config{a, b} {
		serverID := bytes.Repeat([]byte{0xab}, c.ServerIDLength)
		cid, err := all[c.ID].Encode(serverID, make([]byte, c.NonceLength))
		if err != nil {
			t.Fatal(err)
		}
		id, got, err := all.Decode(cid)
		if err != nil || id != c.ID || !bytes.Equal(got, serverID) {
			t.Errorf("%x is of configuration %d, server %x (%v), want %d and %x", cid, id, got, err, c.ID, serverID)
		}
	}
	unroutable, err := Unroutable(8)
	if err != nil {
		t.Fatal(err)
	}
	for _, cid := range [][]byte{nil, {}, {0}, {0x20, 1, 2, 3, 4, 5, 6, 7, 8}, {0xa0, 1, 2, 3}, unroutable} {
		if _, _, err := all.Decode(cid); !errors.Is(err, ErrUnroutable) {
			t.Errorf("%x: error %v, want ErrUnroutable", cid, err)
		}
	}
}

func TestUnroutable(t *testing.T) {
	for _, length := range []int{8, 20} {
		cid, err := Unroutable(length)
		if err != nil || len(cid) != length || cid[0] != 0xe0|byte(length-1) {
			t.Errorf("Unroutable(%d) = %x, %v", length, cid, err)
		}
	}
	for _, length := range []int{0, 7, 21} {
		if cid, err := Unroutable(length); err == nil {
			t.Errorf("Unroutable(%d) = %x, want an error", length, cid)
		}
	}
}

// Several goroutines never get the same connection ID; and a generator that has
// counted through all its nonces says so.
func TestGenerator(t *testing.T) {
	c := mustNew(t, Config{ServerIDLength: 1, NonceLength: 4, Key: bytes.Repeat([]byte{1}, KeyLength)})
	g, err := NewGenerator(c, []byte{9})
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var wg sync.WaitGroup
	seen := map[string]bool{}
	for range 4 {
		wg.Go(func() {
			for range 500 {
				cid, err := g.Generate()
				mu.Lock()
				if err != nil || seen[string(cid)] {
					t.Errorf("%x came twice (%v)", cid, err)
				}
				seen[string(cid)] = true
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	// Over the end of the space, and on to one before the first nonce.
	copy(g.next, []byte{0xff, 0xff, 0xff, 0xff})
	copy(g.first, []byte{0, 0, 0, 1})
	for range 2 {
		if _, err := g.Generate(); err != nil {
			t.Fatal(err)
		}
	}
	if cid, err := g.Generate(); !errors.Is(err, ErrExhausted) {
		t.Errorf("after the last nonce: %x, %v, want ErrExhausted", cid, err)
	}
}

// Nothing that comes in makes a codec panic, and what decodes at all is what its
// server ID and nonce encode to.
func FuzzDecode(f *testing.F) {
	for _, v := range vectors {
		f.Add(unhex(f, v.cid), unhex(f, v.key), v.id, uint8(len(v.serverID)/2), uint8(len(v.nonce)/2))
	}
	f.Fuzz(func(t *testing.T, cid, key []byte, id, sidLength, nonceLength uint8) {
		c, err := New(Config{ID: id, ServerIDLength: int(sidLength), NonceLength: int(nonceLength), Key: key})
		if err != nil {
			return
		}
		serverID, err := c.Decode(cid)
		if wants := len(cid) >= c.Length() && cid[0]>>5 == id; wants != (err == nil) {
			t.Fatalf("%x of configuration %d with %d bytes: error %v", cid, id, c.Length(), err)
		}
		if err != nil {
			return
		}
		text := bytes.Clone(cid[1:c.Length()])
		switch {
		case c.block == nil:
		case len(text) == 16:
			c.block.Decrypt(text, text)
		default:
			c.decryptFourPass(text)
		}
		again, err := c.Encode(serverID, text[sidLength:])
		if err != nil || !bytes.Equal(again[1:], cid[1:c.Length()]) {
			t.Fatalf("%x decodes to server %x, which encodes to %x (%v)", cid, serverID, again, err)
		}
	})
}
