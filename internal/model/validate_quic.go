package model

import "fmt"

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
	if s.Protocol == TCP {
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
