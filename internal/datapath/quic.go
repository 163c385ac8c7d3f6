package datapath

import (
	"encoding/binary"
	"math/bits"
	"unsafe"

	"weir.io/weir/internal/datapath/abi"
	"weir.io/weir/internal/model"
)

// What a ring has for QUIC, as in bpf/abi/types.h.
const (
	quicConfigs        = 7 // QUIC_CONFIGS
	quicConfigLines    = 4 // QUIC_CONFIG_LINES
	quicProbes         = 4 // QUIC_PROBES
	quicServersPerLine = len(abi.QuicServers{}.Backends)
	aesBlockSize       = 16
)

// quicEntry is a server ID of a configuration, and its backend's position.
type quicEntry struct {
	key      [2]uint64
	position int
}

// quicEntries are all entries of the ring's table.
func quicEntries(s *model.TableService) []quicEntry {
	entries := make([]quicEntry, 0, len(s.QUIC)*len(s.Backends))
	for _, c := range s.QUIC {
		for i, b := range s.Backends {
			id := b.ServerID[c.ID]
			if id == "" {
				continue
			}
			var key [aesBlockSize]byte
			copy(key[:len(key)-1], id)
			key[len(key)-1] = c.ID + 1
			words := [2]uint64{binary.LittleEndian.Uint64(key[:]), binary.LittleEndian.Uint64(key[8:])}
			entries = append(entries, quicEntry{words, i})
		}
	}
	return entries
}

// quicTable puts the entries in the smallest table, of those whose number of lines is a power of
// two, in which each entry is at most quicProbes lines from its bucket.
func quicTable(s *model.TableService) [][]quicEntry {
	entries := quicEntries(s)
	for buckets := 1; ; buckets *= 2 {
		if buckets*quicServersPerLine < len(entries) {
			continue
		}
		if table, fits := fillQUIC(entries, s.Salt, buckets); fits {
			return table
		}
	}
}

func fillQUIC(entries []quicEntry, salt uint64, buckets int) (table [][]quicEntry, fits bool) {
	table = make([][]quicEntry, buckets)
	for _, e := range entries {
		bucket := quicBucket(salt, e.key)
		fits := false
		for probe := range quicProbes {
			line := &table[(bucket+uint32(probe))&uint32(buckets-1)]
			if len(*line) < quicServersPerLine {
				*line = append(*line, e)
				fits = true
				break
			}
		}
		if !fits {
			return nil, false
		}
	}
	return table, true
}

// quicBucket is quic_server's hash in bpf/director/pick/quic.h.
func quicBucket(salt uint64, key [2]uint64) uint32 {
	hash := (salt ^ key[0]) * 0x9e3779b97f4a7c15
	hash ^= hash >> 32
	hash = (hash ^ key[1]) * 0xbb67ae8584caa73b
	hash ^= hash >> 29
	hash *= 0x3c6ef372fe94f82b
	return uint32((hash ^ hash>>32) >> 32)
}

// quicLines is how many lines of its ring a service takes for QUIC.
func quicLines(s *model.TableService) int {
	if len(s.QUIC) == 0 {
		return 0
	}
	return quicConfigs*quicConfigLines + len(quicTable(s))
}

// writeQUIC writes the configurations and the table, and returns its lines.
func writeQUIC(lines []byte, s *model.TableService, index []uint32) uint32 {
	for _, c := range s.QUIC {
		at := lines[int(c.ID)*quicConfigLines*abi.LineSize:]
		*(*abi.QuicConfig)(unsafe.Pointer(&at[0])) = quicConfigOf(c, serverIDLength(s, c.ID))
		if !c.Key.IsZero() {
			keys := aesRoundKeys(c.Key)
			copy(at[abi.LineSize:], keys[:])
		}
	}
	table := quicTable(s)
	for i, bucket := range table {
		line := (*abi.QuicServers)(unsafe.Pointer(&lines[(quicConfigs*quicConfigLines+i)*abi.LineSize]))
		for j, e := range bucket {
			line.Keys[j], line.Backends[j] = e.key, index[e.position]
		}
	}
	return uint32(len(table))
}

// serverIDLength is the length of a configuration's server IDs; 0 without backends.
func serverIDLength(s *model.TableService, number uint8) int {
	length := 0
	for _, b := range s.Backends {
		length = max(length, len(b.ServerID[number]))
	}
	return length
}

func encryptionOf(c model.QUICConfig, serverIDLength int) model.QUICEncryption {
	switch {
	case c.Key.IsZero():
		return model.Plaintext
	case serverIDLength+int(c.NonceLength) == aesBlockSize:
		return model.SinglePass
	}
	return model.FourPass
}

// quicStatus is what may be shown of a service's configurations.
func quicStatus(s *model.TableService) (list []model.QUICStatus) {
	for _, c := range s.QUIC {
		length := serverIDLength(s, c.ID)
		list = append(list, model.QUICStatus{ID: c.ID, Encryption: encryptionOf(c, length),
			ServerIDLength: length, NonceLength: int(c.NonceLength)})
	}
	return list
}

// quicConfigOf says how a connection ID is cut in halves and which part of it is the server ID.
func quicConfigOf(c model.QUICConfig, serverIDLength int) abi.QuicConfig {
	length := serverIDLength + int(c.NonceLength)
	out := abi.QuicConfig{Length: uint8(length), LastPass: 1, ServerId: byteMask(serverIDLength)}
	switch encryptionOf(c, serverIDLength) {
	case model.Plaintext:
		out.Algorithm = uint8(abi.QuicAlgorithmQUIC_PLAINTEXT)
		out.Left = byteMask(min(length, aesBlockSize))
	case model.SinglePass:
		out.Algorithm = uint8(abi.QuicAlgorithmQUIC_SINGLE_PASS)
		out.Left = byteMask(length)
	case model.FourPass:
		half := (length + 1) / 2
		out.Algorithm = uint8(abi.QuicAlgorithmQUIC_FOUR_PASS)
		out.RightAt = uint8(length - half)
		out.Left, out.Right = byteMask(half), byteMask(half)
		if length%2 == 1 {
			out.Left[(half-1)/8] &^= 0x0f << (8 * ((half - 1) % 8))
			out.Right[0] &^= 0xf0
		}
		if serverIDLength <= length/2 {
			out.LastPass = 2
		}
	}
	return out
}

// byteMask is a mask of the first n bytes, as words in memory.
func byteMask(n int) (mask [2]uint64) {
	for i := range n {
		mask[i/8] |= 0xff << (8 * (i % 8))
	}
	return mask
}

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
