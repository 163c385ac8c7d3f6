package quiclb

import (
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
)

// ErrExhausted says that a server has used every nonce of a configuration. It needs
// another configuration, or connection IDs that name no server ([Unroutable]).
var ErrExhausted = errors.New("every nonce of the configuration is used")

// Generator makes a server's connection IDs, no two of them the same. It may be used
// by several goroutines at once.
type Generator struct {
	codec    *Codec
	serverID []byte

	mu    sync.Mutex
	first []byte // nonce; with a key only
	next  []byte
	begun bool // next has gone on from first
}

// NewGenerator returns the generator of one server. With a key its nonces count up
// from a random one, so that none comes twice before all are used; another generator
// of the same server, after it has started again, begins elsewhere, and with nonces
// of 8 bytes or more it does not come to those of the first one. Without a key
// anybody would see them count, and they are random: in 8 bytes some billions come
// before two are likely to be the same, in 4 bytes some ten thousands.
func NewGenerator(c *Codec, serverID []byte) (*Generator, error) {
	if len(serverID) != c.config.ServerIDLength {
		return nil, fmt.Errorf("a server ID of %d bytes is not one of %d", len(serverID), c.config.ServerIDLength)
	}
	g := &Generator{codec: c, serverID: append([]byte(nil), serverID...)}
	g.first = randomBytes(c.config.NonceLength)
	g.next = append([]byte(nil), g.first...)
	return g, nil
}

// Generate returns the next connection ID. The error is ErrExhausted.
func (g *Generator) Generate() ([]byte, error) {
	nonce, err := g.nonce()
	if err != nil {
		return nil, err
	}
	return g.codec.Encode(g.serverID, nonce)
}

func (g *Generator) nonce() ([]byte, error) {
	if g.codec.block == nil {
		return randomBytes(g.codec.config.NonceLength), nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.begun && string(g.next) == string(g.first) {
		return nil, ErrExhausted
	}
	g.begun = true
	nonce := append([]byte(nil), g.next...)
	for i := len(g.next) - 1; i >= 0; i-- {
		g.next[i]++
		if g.next[i] != 0 {
			break
		}
	}
	return nonce, nil
}

func randomBytes(n int) []byte {
	b := make([]byte, n)
	rand.Read(b) // never returns an error
	return b
}
