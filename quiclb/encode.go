package quiclb

import "fmt"

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
