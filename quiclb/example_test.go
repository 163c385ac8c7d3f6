package quiclb_test

import (
	"bytes"
	"fmt"

	"weir.io/weir/quiclb"
)

// A server makes its connection IDs with a Generator, and a load balancer that has the
// same configuration finds the server ID again. In quic-go, Generate and Length are
// what a ConnectionIDGenerator needs.
func Example() {
	codec, err := quiclb.New(quiclb.Config{ID: 0, ServerIDLength: 3, NonceLength: 13, Key: bytes.Repeat([]byte{0x5a}, quiclb.KeyLength)})
	if err != nil {
		panic(err)
	}
	server, err := quiclb.NewGenerator(codec, []byte{0xc4, 0x60, 0x5e})
	if err != nil {
		panic(err)
	}
	id, err := server.Generate()
	if err != nil {
		panic(err)
	}
	found, err := codec.Decode(id)
	fmt.Printf("%d bytes name server %x (%v)\n", len(id), found, err)
	// Output: 17 bytes name server c4605e (<nil>)
}
