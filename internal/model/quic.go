package model

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
)

// QUICConfigs is how many configurations of connection IDs a service may have: three
// bits of a connection ID say which, and their last value stands for none.
const QUICConfigs = 7

// QUICConfig says how the connection IDs of a service's backends name them, as in
// draft-ietf-quic-load-balancers-21. Its server IDs are as long as those of the backends.
type QUICConfig struct {
	ID          uint8   `json:"id"`           // 0 to 6: the first three bits of a connection ID
	NonceLength uint8   `json:"nonce-length"` // bytes
	Key         QUICKey `json:"key,omitzero"`
}

// QUICKey is an AES-128 key. The zero value is none: connection IDs are not encrypted.
type QUICKey [16]byte

// HiddenKey stands for a key that may not be seen. The API writes it, and a client that gives it
// back means the key that is there. It is all ones, which no key may be.
var HiddenKey = QUICKey{255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255}

// hiddenKey is how it is written.
const hiddenKey = "hidden"

// IsZero reports whether there is no key.
func (k QUICKey) IsZero() bool { return k == QUICKey{} }

// Hidden reports whether it is HiddenKey, which only stands for a key.
func (k QUICKey) Hidden() bool { return k == HiddenKey }

// Format writes whether there is a key, and never the key itself: logs and error
// messages are read by more people than the configuration is.
func (k QUICKey) Format(f fmt.State, _ rune) {
	text := "(a key)"
	if k.IsZero() {
		text = "(no key)"
	}
	_, _ = io.WriteString(f, text)
}

// MarshalText writes 32 hexadecimal digits, "hidden" for HiddenKey, or nothing for the zero
// value.
func (k QUICKey) MarshalText() ([]byte, error) {
	if k.IsZero() {
		return nil, nil
	}
	if k.Hidden() {
		return []byte(hiddenKey), nil
	}
	return hex.AppendEncode(nil, k[:]), nil
}

// UnmarshalText reads 32 hexadecimal digits, or "hidden". Its errors do not repeat the key.
func (k *QUICKey) UnmarshalText(text []byte) error {
	if string(text) == hiddenKey {
		*k = HiddenKey
		return nil
	}
	b, err := hex.DecodeString(string(text))
	if err != nil || len(b) != len(k) {
		return fmt.Errorf("key is not %d hexadecimal digits", 2*len(k))
	}
	if *k = QUICKey(b); k.IsZero() {
		return fmt.Errorf("key is all zeros; leave it out for connection IDs without encryption")
	}
	if k.Hidden() {
		return fmt.Errorf("key is all ones; take a random one")
	}
	return nil
}

// HideKeys returns services whose keys cannot be seen. It does not change its argument.
func HideKeys(services []Service) []Service {
	services = slices.Clone(services)
	for i := range services {
		services[i].QUIC = slices.Clone(services[i].QUIC)
		for n := range services[i].QUIC {
			if q := &services[i].QUIC[n]; !q.Key.IsZero() {
				q.Key = HiddenKey
			}
		}
	}
	return services
}

// HasKey reports whether some service has a key that is to be kept secret.
func (c Config) HasKey() bool {
	return slices.ContainsFunc(c.Services, func(s Service) bool {
		return slices.ContainsFunc(s.QUIC, func(q QUICConfig) bool { return !q.Key.IsZero() })
	})
}

// ServerID is the bytes by which connection IDs name a backend. The zero value is none.
type ServerID string

// String returns hexadecimal digits.
func (s ServerID) String() string { return hex.EncodeToString([]byte(s)) }

// MarshalText writes what String returns.
func (s ServerID) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads what String returns.
func (s *ServerID) UnmarshalText(text []byte) error {
	b, err := hex.DecodeString(string(text))
	if err != nil || len(b) == 0 {
		return fmt.Errorf("server ID %q is not bytes as pairs of hexadecimal digits", text)
	}
	*s = ServerID(b)
	return nil
}

// ServerIDs are a backend's server IDs by the numbers of the configurations. They are written as
// one text if all are the same, else as a mapping.
type ServerIDs [QUICConfigs]ServerID

// SameServerID is one server ID for all configurations.
func SameServerID(id ServerID) (all ServerIDs) {
	for i := range all {
		all[i] = id
	}
	return all
}

// IsZero reports whether there is none.
func (s ServerIDs) IsZero() bool { return s == ServerIDs{} }

// same reports whether all configurations have the same server ID.
func (s ServerIDs) same() bool { return s == SameServerID(s[0]) }

// mapping returns the server IDs by their configurations' numbers.
func (s ServerIDs) mapping() map[string]ServerID {
	m := make(map[string]ServerID)
	for i, id := range s {
		if id != "" {
			m[strconv.Itoa(i)] = id
		}
	}
	return m
}

// MarshalJSON writes a text or an object, an empty object where there is none.
func (s ServerIDs) MarshalJSON() ([]byte, error) {
	if s.same() && !s.IsZero() {
		return json.Marshal(s[0])
	}
	return json.Marshal(s.mapping())
}

// MarshalYAML returns what MarshalJSON writes, as go-yaml wants it.
func (s ServerIDs) MarshalYAML() (any, error) {
	if s.same() && !s.IsZero() {
		return s[0].String(), nil
	}
	return s.mapping(), nil
}

// UnmarshalJSON reads what MarshalJSON writes.
func (s *ServerIDs) UnmarshalJSON(text []byte) error {
	var one ServerID
	if len(text) > 0 && text[0] == '"' {
		if err := json.Unmarshal(text, &one); err != nil {
			return err
		}
		*s = SameServerID(one)
		return nil
	}
	var m map[string]ServerID
	if err := json.Unmarshal(text, &m); err != nil {
		return err
	}
	var all ServerIDs
	for key, id := range m {
		if err := all.Put(key, id); err != nil {
			return err
		}
	}
	*s = all
	return nil
}

// Put sets the server ID for the configuration whose number is given as text. The error says that
// there can be no such configuration.
func (s *ServerIDs) Put(number string, id ServerID) error {
	i, err := strconv.ParseUint(number, 10, 8)
	if err != nil || i >= QUICConfigs || number != strconv.FormatUint(i, 10) {
		return fmt.Errorf("%q is not the number of a configuration, 0 to %d", number, QUICConfigs-1)
	}
	s[i] = id
	return nil
}
