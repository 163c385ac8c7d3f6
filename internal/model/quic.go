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

// The bounds of draft-ietf-quic-load-balancers-21, sections 3.1 and 5.3: quiclb
// has the same.
const (
	minQUICNonceLength = 4
	maxQUICLength      = 19
	maxServerIDLength  = maxQUICLength - minQUICNonceLength
)

// quicValidation is the validation of one service's connection IDs.
type quicValidation struct {
	*validation
	service *Service
	index   int
	config  [QUICConfigs]int // position of each number's configuration + 1
	said    map[string]bool  // paths of server IDs that have been reported
}

// quic checks that a service's connection IDs are as the draft says and name each of
// its backends.
func (v *validation) quic(i int) {
	s := &v.config.Services[i]
	if len(s.QUIC) == 0 {
		for j, b := range s.Backends {
			if !b.ServerID.IsZero() {
				v.errs.add(backendPath(i, j, "server-id"), "is only for services with quic")
			}
		}
		return
	}
	if s.Protocol == TCP || s.Protocol == SCTP {
		v.errs.add(servicePath(i, "quic"), "is only for protocol udp")
	}
	if s.SNAT {
		v.errs.addWithOther(servicePath(i, "quic"), servicePath(i, "snat"),
			"is not for full NAT, which knows a flow by the client's address")
	}
	q := quicValidation{validation: v, service: s, index: i, said: make(map[string]bool)}
	for n, c := range s.QUIC {
		switch {
		case c.ID >= QUICConfigs:
			v.errs.add(q.path(n, "id"), "%d is out of range 0 to %d", c.ID, QUICConfigs-1)
		case q.config[c.ID] > 0:
			first := q.config[c.ID] - 1
			v.errs.addWithOther(q.path(n, "id"), q.path(first, "id"), "%d is already the number of quic[%d]", c.ID, first)
		default:
			q.config[c.ID] = n + 1
		}
		q.lengths(n)
	}
	q.strayServerIDs()
	q.sharedServerIDs()
}

func (q *quicValidation) path(n int, field string) string {
	return servicePath(q.index, fmt.Sprintf("quic[%d].%s", n, field))
}

// idPath is where a backend's server ID of a configuration is written, or would be.
func (q *quicValidation) idPath(backend int, number uint8) string {
	ids := &q.service.Backends[backend].ServerID
	if ids[number] == "" || ids.same() {
		return backendPath(q.index, backend, "server-id")
	}
	return backendPath(q.index, backend, fmt.Sprintf("server-id.%d", number))
}

// addID reports a problem of a server ID, unless one is reported already: an ID that is written
// once may belong to several configurations.
func (q *quicValidation) addID(backend int, number uint8, other, format string, args ...any) {
	path := q.idPath(backend, number)
	if !q.said[path] {
		q.said[path] = true
		q.errs.addWithOther(path, other, format, args...)
	}
}

// lengths checks the server IDs of a configuration, and that the nonce fits beside them.
func (q *quicValidation) lengths(n int) {
	c, length, why := q.service.QUIC[n], 1, ""
	if c.ID < QUICConfigs {
		if n := q.serverIDs(c.ID); n > 0 {
			length, why = n, fmt.Sprintf(", for server IDs of %d bytes", n)
		}
	}
	if longest := maxQUICLength - length; int(c.NonceLength) < minQUICNonceLength || int(c.NonceLength) > longest {
		q.errs.add(q.path(n, "nonce-length"), "%d is out of range %d to %d%s", c.NonceLength, minQUICNonceLength, longest, why)
	}
}

// serverIDs checks the server IDs of a configuration, and returns the length of the first, or the
// longest allowed.
func (q *quicValidation) serverIDs(number uint8) (length int) {
	seen := make(map[ServerID]int, len(q.service.Backends))
	first := -1
	for j := range q.service.Backends {
		b := &q.service.Backends[j]
		id := b.ServerID[number]
		switch {
		case b.ServerID.IsZero():
			q.addID(j, number, "", "is required in a service with quic")
			continue
		case id == "":
			q.addID(j, number, "", "has none for configuration %d", number)
			continue
		case first < 0:
			first, length = j, min(len(id), maxServerIDLength)
			if len(id) > maxServerIDLength {
				q.addID(j, number, "", "%s is longer than %d bytes", id, maxServerIDLength)
			}
		case len(id) != len(q.service.Backends[first].ServerID[number]):
			q.addID(j, number, q.idPath(first, number), "%s has %d bytes and that of backend %q has %d",
				id, len(id), q.service.Backends[first].Name, len(q.service.Backends[first].ServerID[number]))
		}
		if other, dup := seen[id]; dup {
			q.addID(j, number, q.idPath(other, number), "%s is already that of backend %q", id, q.service.Backends[other].Name)
			continue
		}
		seen[id] = j
	}
	return length
}

// strayServerIDs refuses server IDs of configurations that the service does not have.
func (q *quicValidation) strayServerIDs() {
	for j := range q.service.Backends {
		ids := &q.service.Backends[j].ServerID
		for number, id := range ids {
			if id != "" && q.config[number] == 0 && !ids.same() {
				q.addID(j, uint8(number), "", "is for configuration %d, which is not in quic", number)
			}
		}
	}
}

// sharedServerIDs refuses what the draft forbids under "Distinguishing Attacks": a server
// ID that can be read in one configuration helps to break the encryption of another.
func (q *quicValidation) sharedServerIDs() {
	open := make(map[ServerID]int) // those of configurations without a key, with their positions
	for n, c := range q.service.QUIC {
		for j := 0; c.ID < QUICConfigs && c.Key.IsZero() && j < len(q.service.Backends); j++ {
			open[q.service.Backends[j].ServerID[c.ID]] = n
		}
	}
	delete(open, "")
	for n, c := range q.service.QUIC {
		for j := 0; c.ID < QUICConfigs && !c.Key.IsZero() && j < len(q.service.Backends); j++ {
			id := q.service.Backends[j].ServerID[c.ID]
			if of, shared := open[id]; shared {
				q.errs.addWithOther(q.path(n, "key"), q.path(of, "id"),
					"hides server ID %s, which quic[%d] shows: what has no key needs server IDs of its own (server-id: {%d: ..., %d: ...})",
					id, of, q.service.QUIC[of].ID, c.ID)
				break
			}
		}
	}
}
