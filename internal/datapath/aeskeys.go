package datapath

import "math/bits"

// aesKeysSize is the size of the eleven round keys of AES-128, in bytes.
const aesKeysSize = 11 * aesBlockSize

// aesRoundKeys expands a key (FIPS 197, section 5.2). crypto/aes does not export this.
func aesRoundKeys(key [aesBlockSize]byte) (keys [aesKeysSize]byte) {
	sbox := aesSubstitution()
	copy(keys[:], key[:])
	constant := byte(1)
	for i := len(key); i < len(keys); i += 4 {
		word := [4]byte(keys[i-4 : i])
		if i%len(key) == 0 {
			word = [4]byte{sbox[word[1]] ^ constant, sbox[word[2]], sbox[word[3]], sbox[word[0]]}
			constant = aesDouble(constant)
		}
		for j := range word {
			keys[i+j] = keys[i+j-len(key)] ^ word[j]
		}
	}
	return keys
}

// aesDouble multiplies by x in the field of AES.
func aesDouble(b byte) byte { return b<<1 ^ b>>7*0x1b }

// aesSubstitution is the table of SubBytes (FIPS 197, section 5.1.1): the inverse in the field,
// then a sum of rotations. The powers of 3 and of its inverse run through all values except zero.
func aesSubstitution() (sbox [256]byte) {
	power, inverse := byte(1), byte(1)
	for range 255 {
		power ^= aesDouble(power)
		inverse ^= inverse << 1
		inverse ^= inverse << 2
		inverse ^= inverse << 4
		inverse ^= inverse >> 7 * 0x09
		sum := inverse
		for n := 1; n <= 4; n++ {
			sum ^= bits.RotateLeft8(inverse, n)
		}
		sbox[power] = sum ^ 0x63
	}
	sbox[0] = 0x63
	return sbox
}
