package bfd

import (
	"crypto/md5"
	"crypto/sha1"
	"crypto/subtle"
	"encoding/binary"
	"fmt"
	"os"
	"strings"
	"time"

	"weir.io/weir/internal/model"
)

// Authentication sections (RFC 5880 4.3, 4.4): type, length, number of the key, a reserved
// byte, a sequence number of 4 bytes, and the digest.
const (
	digestAt    = 8
	mostDigest  = sha1.Size
	mostSection = digestAt + mostDigest
)

// method is how the packets of one type of authentication are signed.
type method struct {
	number     uint8
	digest     int  // its length, which is also a key's greatest length
	meticulous bool // each packet has a new sequence number
}

var methods = map[model.BFDAuthenticationType]method{
	model.KeyedMD5:            {2, md5.Size, false},
	model.MeticulousKeyedMD5:  {3, md5.Size, true},
	model.KeyedSHA1:           {4, sha1.Size, false},
	model.MeticulousKeyedSHA1: {5, sha1.Size, true},
}

// password is how a session's packets are signed.
type password struct {
	method
	id     uint8
	secret [mostDigest]byte // shorter ones end in zeros
}

// readPassword reads the key of a session: the first line of its file.
func readPassword(a *model.BFDAuthentication) (*password, error) {
	of, known := methods[a.Type]
	if !known {
		return nil, fmt.Errorf("authentication: this version of weir bfd does not know the type %q", a.Type)
	}
	text, err := os.ReadFile(a.PasswordFile)
	if err != nil {
		return nil, fmt.Errorf("authentication: password-file: %w", err)
	}
	line, _, _ := strings.Cut(string(text), "\n")
	if line == "" || len(line) > of.digest {
		return nil, fmt.Errorf("authentication: password-file: the first line of %s has %d characters, not 1 to %d", a.PasswordFile, len(line), of.digest)
	}
	p := &password{method: of, id: a.KeyID}
	copy(p.secret[:], line)
	return p, nil
}

// CheckPassword returns what is wrong with the password file of a session.
func CheckPassword(a *model.BFDAuthentication) error {
	_, err := readPassword(a)
	return err
}

// guard signs a session's packets and checks received ones (RFC 5880 6.7.3, 6.7.4).
type guard struct {
	password *password // nil: the session has no authentication, or problem says why it has no key
	required bool      // the session has authentication
	problem  string

	sent    uint32    // the sequence number of the last packet that was sent
	last    uint32    // of the last packet that was accepted
	forgets time.Time // when any number is accepted again; zero: it is now
	scratch [fixedSize + mostSection]byte
	section [mostSection]byte
}

// set takes what a session wants, and the key that was read for that. A session whose key cannot
// be read keeps the one that it has.
func (g *guard) set(want *model.BFDAuthentication, p *password, err error) {
	if g.required = want != nil; !g.required {
		g.password, g.problem = nil, ""
		return
	}
	if err != nil {
		g.problem = err.Error()
		return
	}
	if g.problem = ""; g.password == nil || *g.password != *p {
		g.password, g.forgets = p, time.Time{}
	}
}

// silent reports whether no packet can be sent, because it could not be signed.
func (g *guard) silent() bool { return g.required && g.password == nil }

// sign appends a packet to b, with its authentication section if it needs one.
func (g *guard) sign(p Packet, b []byte) []byte {
	if g.password == nil {
		return p.Append(b)
	}
	g.sent++
	section := g.section[:digestAt+g.password.digest]
	clear(section)
	section[0], section[1], section[2] = g.password.number, uint8(len(section)), g.password.id
	binary.BigEndian.PutUint32(section[4:], g.sent)
	copy(section[digestAt:], g.password.secret[:])
	p.Auth = section
	from := len(b)
	b = p.Append(b)
	g.password.sum(b[from:], b[len(b)-g.password.digest:])
	return b
}

// sum writes the digest of a packet that has the password in the digest's place.
func (p *password) sum(packet, to []byte) {
	if p.digest == md5.Size {
		digest := md5.Sum(packet)
		copy(to, digest[:])
		return
	}
	digest := sha1.Sum(packet)
	copy(to, digest[:])
}

// check says why a packet must be discarded: its sender does not know the session's password, or it
// was sent before; empty: it is valid. bytes are the packet as it came.
func (g *guard) check(now time.Time, p *Packet, bytes []byte) string {
	switch {
	case !g.required && p.Auth == nil:
		return ""
	case !g.required:
		return "its packets are authenticated, and this end is not told how"
	case g.password == nil:
		return g.problem
	case p.Auth == nil:
		return "its packets are not authenticated"
	case p.Auth[0] != g.password.number:
		return fmt.Sprintf("its packets are authenticated by type %d (RFC 5880 4.1), and this end's by %d", p.Auth[0], g.password.number)
	case len(p.Auth) != digestAt+g.password.digest:
		return "its authentication sections have the wrong length"
	case p.Auth[2] != g.password.id:
		return fmt.Sprintf("its packets are signed by the key %d, and this end's by %d", p.Auth[2], g.password.id)
	}
	number := binary.BigEndian.Uint32(p.Auth[4:])
	if known := now.Before(g.forgets); known && !g.follows(number, p.Multiplier) {
		return "its packets have sequence numbers that do not follow those before: they are sent again by somebody, or it has begun anew"
	}
	length := fixedSize + len(p.Auth)
	copied := g.scratch[:length]
	copy(copied, bytes[:length])
	at := copied[length-g.password.digest:]
	copy(at, g.password.secret[:g.password.digest])
	var want [mostDigest]byte
	g.password.sum(copied, want[:])
	if subtle.ConstantTimeCompare(want[:g.password.digest], bytes[length-g.password.digest:length]) != 1 {
		return "its packets are signed by another password"
	}
	g.last = number
	return ""
}

// follows reports whether a sequence number may come after the last one, in the circle of 32 bits:
// by at most three times the number of packets that may be lost.
func (g *guard) follows(number uint32, multiplier uint8) bool {
	ahead := number - g.last
	return ahead <= 3*uint32(multiplier) && (ahead > 0 || !g.password.meticulous)
}

// accepted notes that the session has taken a packet: from now on its number counts, for twice
// the detection time (RFC 5880 6.8.1, bfd.AuthSeqKnown).
func (g *guard) accepted(now time.Time, detection time.Duration) { g.forgets = now.Add(2 * detection) }
