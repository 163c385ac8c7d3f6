package quiclb

import "fmt"

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
