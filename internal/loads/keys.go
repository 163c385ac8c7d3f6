package loads

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"strings"
)

const (
	keyLength = 32
	keysMost  = 4
	fileMost  = 4096 // bytes: more is not a file of keys
)

// key is what directors and agents share.
type key struct {
	secret [keyLength]byte
	id     [4]byte
}

func newKey(secret [keyLength]byte) key {
	sum := sha256.Sum256(append([]byte("weir loads"), secret[:]...))
	return key{secret, [4]byte(sum[:])}
}

func (k *key) mac(text []byte) (mac [macLength]byte) {
	h := hmac.New(sha256.New, k.secret[:])
	h.Write(text)
	return [macLength]byte(h.Sum(nil))
}

// made reports whether a MAC was made with this key.
func (k *key) made(text, mac []byte) bool {
	right := k.mac(text)
	return hmac.Equal(right[:], mac)
}

// keys are those that messages may be made with. This process makes them with the first.
type keys []key

func (k keys) of(id [4]byte) *key {
	for i := range k {
		if k[i].id == id {
			return &k[i]
		}
	}
	return nil
}

// readKeys reads a file with one key to a line: 64 hexadecimal digits. Empty lines and those that
// begin with # are left out. The errors do not repeat the file's contents.
func readKeys(path string) (keys, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("read keys: %w", err)
	}
	if info.Size() > fileMost {
		return nil, fmt.Errorf("read keys: %s has %d bytes, more than %d", path, info.Size(), fileMost)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read keys: %w", err)
	}
	all, err := parseKeys(string(text))
	if err != nil {
		return nil, fmt.Errorf("read keys: %s: %w", path, err)
	}
	return all, nil
}

func parseKeys(text string) (all keys, err error) {
	number := 0
	for line := range strings.Lines(text) {
		number++
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		secret, err := hex.DecodeString(line)
		if err != nil || len(secret) != keyLength {
			return nil, fmt.Errorf("line %d is not a key: 64 hexadecimal digits, as openssl rand -hex 32 writes them", number)
		}
		k := newKey([keyLength]byte(secret))
		if all.of(k.id) != nil {
			return nil, fmt.Errorf("line %d is a key that is there before", number)
		}
		all = append(all, k)
	}
	switch {
	case len(all) == 0:
		return nil, errors.New("there is no key in it")
	case len(all) > keysMost:
		return nil, fmt.Errorf("has %d keys, more than %d", len(all), keysMost)
	}
	return all, nil
}
