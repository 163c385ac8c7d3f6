package quiclb

import "crypto/aes"

// Server ID and nonce of any length but a block's are encrypted by a Feistel network
// of four rounds (section 5.4.2). The text is two halves; of an odd number of bytes
// the middle one is cut in two, and each half has a nibble of zeros in its place.
const (
	highNibble = 0xf0
	lowNibble  = 0x0f
)

// halves is a text that is being encrypted or decrypted.
type halves struct {
	left, right []byte
	odd         bool
	length      byte // of the text
}

func split(text []byte) halves {
	n := (len(text) + 1) / 2
	h := halves{left: make([]byte, n), right: make([]byte, n), odd: len(text)%2 == 1, length: byte(len(text))}
	copy(h.left, text[:n])
	copy(h.right, text[len(text)-n:])
	h.clear()
	return h
}

// clear restores the nibbles of zeros.
func (h *halves) clear() {
	if h.odd {
		h.left[len(h.left)-1] &= highNibble
		h.right[0] &= lowNibble
	}
}

// join writes the halves back to where split read them.
func (h *halves) join(text []byte) {
	n := len(h.left)
	copy(text, h.left)
	if h.odd {
		text[n-1] |= h.right[0]
		copy(text[n:], h.right[1:])
		return
	}
	copy(text[n:], h.right)
}

// pass does one round: what one half encrypts to changes the other.
func (c *Codec) pass(h *halves, number byte) {
	from, to := h.left, h.right
	if number%2 == 0 {
		from, to = h.right, h.left
	}
	var block [aes.BlockSize]byte
	copy(block[:], from)
	block[aes.BlockSize-2], block[aes.BlockSize-1] = h.length, number
	c.block.Encrypt(block[:], block[:])
	for i := range to {
		to[i] ^= block[i]
	}
	h.clear()
}

func (c *Codec) encryptFourPass(text []byte) {
	h := split(text)
	for number := byte(1); number <= 4; number++ {
		c.pass(&h, number)
	}
	h.join(text)
}

// decryptFourPass undoes all rounds, also the one that a balancer may leave out: the
// first changed the right half, which has a part of a long server ID only.
func (c *Codec) decryptFourPass(text []byte) {
	h := split(text)
	for number := byte(4); number >= 1; number-- {
		c.pass(&h, number)
	}
	h.join(text)
}
