// Package quiclb writes and reads QUIC connection IDs that say which server they
// belong to, as in draft-ietf-quic-load-balancers-21: a server puts its server ID
// into every connection ID that it gives out, and a load balancer that knows the
// configuration finds the server again when the client's address has changed.
//
// It is the whole of a server's side, and the twin of what a load balancer does. Of
// all packages of weir it alone is for other programs: servers in Go that weir's
// directors, or any other balancer that follows the draft, are to find.
package quiclb

import (
	"crypto/aes"
	"crypto/cipher"
	"errors"
	"fmt"
)

// The bounds of a configuration (sections 3.1 and 5.3). A connection ID of QUIC
// version 1 has at most 20 bytes (RFC 9000, 17.2), of which the first is taken.
const (
	// MaxID is the largest number of a configuration: the three bits have one more
	// value, which says that a connection ID names no server.
	MaxID = 6
	// MinServerIDLength is the least length of a server ID, in bytes.
	MinServerIDLength = 1
	// MinNonceLength is the least length of a nonce, in bytes.
	MinNonceLength = 4
	// MaxLength is the largest sum of the lengths of server ID and nonce, in bytes.
	MaxLength = 19
	// KeyLength is the length of a key, in bytes: AES-128.
	KeyLength = 16
)

const (
	idShift    = 5             // of the configuration's number in the first byte
	lengthMask = 1<<5 - 1      // of how many bytes follow the first one
	unroutable = MaxID + 1     // the number that no configuration has
	singlePass = aes.BlockSize // server ID and nonce are one block
)

// ErrUnroutable says that a connection ID names no server: its configuration is not
// this one, or it is too short. Clients choose the first connection ID at random, so
// this is no mistake of anybody.
var ErrUnroutable = errors.New("connection ID names no server")

// Config is what servers and load balancers agree on.
type Config struct {
	ID             uint8  // 0 to MaxID: in the first three bits of each connection ID
	ServerIDLength int    // bytes
	NonceLength    int    // bytes
	Key            []byte // KeyLength bytes; none: server IDs can be read by anybody
}

// Codec writes and reads the connection IDs of one configuration. It may be used by
// several goroutines at once.
type Codec struct {
	config Config
	block  cipher.Block // nil: plaintext
}

// New checks a configuration. Its error names what is out of bounds.
func New(c Config) (*Codec, error) {
	switch sum := c.ServerIDLength + c.NonceLength; {
	case c.ID > MaxID:
		return nil, fmt.Errorf("configuration ID %d is out of range 0 to %d", c.ID, MaxID)
	case c.ServerIDLength < MinServerIDLength:
		return nil, fmt.Errorf("a server ID of %d bytes is shorter than %d", c.ServerIDLength, MinServerIDLength)
	case c.NonceLength < MinNonceLength:
		return nil, fmt.Errorf("a nonce of %d bytes is shorter than %d", c.NonceLength, MinNonceLength)
	case sum > MaxLength:
		return nil, fmt.Errorf("server ID and nonce of %d bytes together are longer than %d", sum, MaxLength)
	case len(c.Key) == 0:
		return &Codec{config: c}, nil
	case len(c.Key) != KeyLength:
		return nil, fmt.Errorf("a key of %d bytes is not one of %d", len(c.Key), KeyLength)
	}
	block, err := aes.NewCipher(c.Key)
	if err != nil {
		return nil, fmt.Errorf("prepare key: %w", err)
	}
	return &Codec{config: c, block: block}, nil
}

// Length is how many bytes a connection ID of the configuration has.
func (c *Codec) Length() int { return 1 + c.config.ServerIDLength + c.config.NonceLength }

// routes reports whether a connection ID is long enough, and of this configuration.
func (c *Codec) routes(cid []byte) bool {
	return len(cid) >= c.Length() && cid[0]>>idShift == c.config.ID
}

// Encode returns the connection ID of a server and a nonce. Its first byte says how
// many bytes follow. A nonce must not be used twice with one key and server; without
// a key it must be random, for else it links the connection IDs of a client:
// [Generator] sees to both.
func (c *Codec) Encode(serverID, nonce []byte) ([]byte, error) {
	if len(serverID) != c.config.ServerIDLength {
		return nil, fmt.Errorf("a server ID of %d bytes is not one of %d", len(serverID), c.config.ServerIDLength)
	}
	if len(nonce) != c.config.NonceLength {
		return nil, fmt.Errorf("a nonce of %d bytes is not one of %d", len(nonce), c.config.NonceLength)
	}
	cid := make([]byte, 1, c.Length())
	cid[0] = c.config.ID<<idShift | byte(c.Length()-1)
	cid = append(append(cid, serverID...), nonce...)
	switch text := cid[1:]; {
	case c.block == nil:
	case len(text) == singlePass:
		c.block.Encrypt(text, text)
	default:
		c.encryptFourPass(text)
	}
	return cid, nil
}

// Unroutable returns a random connection ID for a server that has no configuration:
// load balancers do not look for a server in it. The draft asks for 8 bytes or more,
// and the first byte can say no more than MaxLength follow.
func Unroutable(length int) ([]byte, error) {
	if length < 8 || length > 1+MaxLength {
		return nil, fmt.Errorf("a connection ID of %d bytes is out of range 8 to %d", length, 1+MaxLength)
	}
	cid := randomBytes(length)
	cid[0] = unroutable<<idShift | byte(length-1)
	return cid, nil
}

// Decode returns the server ID in a connection ID, which may have more bytes than
// the configuration needs: a server may append some of its own, and a short header
// does not say where its connection ID ends. The error is ErrUnroutable.
func (c *Codec) Decode(cid []byte) ([]byte, error) {
	if !c.routes(cid) {
		return nil, ErrUnroutable
	}
	text := make([]byte, c.Length()-1)
	copy(text, cid[1:])
	switch {
	case c.block == nil:
	case len(text) == singlePass:
		c.block.Decrypt(text, text)
	default:
		c.decryptFourPass(text)
	}
	return text[:c.config.ServerIDLength], nil
}

// Codecs are the configurations in use at the same time, by their numbers.
type Codecs [MaxID + 1]*Codec

// NewCodecs checks configurations; no two may have the same number.
func NewCodecs(configs ...Config) (*Codecs, error) {
	all := new(Codecs)
	for _, config := range configs {
		codec, err := New(config)
		if err != nil {
			return nil, err
		}
		if all[config.ID] != nil {
			return nil, fmt.Errorf("two configurations have ID %d", config.ID)
		}
		all[config.ID] = codec
	}
	return all, nil
}

// Decode returns the number of the configuration that a connection ID is of, and the
// server ID. The error is ErrUnroutable.
func (all *Codecs) Decode(cid []byte) (id uint8, serverID []byte, err error) {
	if len(cid) == 0 {
		return 0, nil, ErrUnroutable
	}
	id = cid[0] >> idShift
	if id > MaxID || all[id] == nil {
		return 0, nil, ErrUnroutable
	}
	serverID, err = all[id].Decode(cid)
	return id, serverID, err
}
