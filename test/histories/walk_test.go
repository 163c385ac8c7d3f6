package histories

import (
	"bytes"
	"fmt"
	"net/netip"
	"strings"

	"weir.io/weir/internal/model"
	"weir.io/weir/lab/packet"
	"weir.io/weir/lab/twin"
)

// walk takes a client's frame from a director to the host whose kernel gets it; nil if the director
// drops it. Every step must match the twin's.
func (h *life) walk(d *director, f model.Flow, p twin.Packet, frame []byte) (end *host, path []netip.Addr) {
	h.Helper()
	to, row := twin.Forward(&d.service, f)
	opens := p.Segment != nil && p.Segment.Flags&packet.SYN != 0
	if opens {
		row = nil
	}
	verdict, out := run(h, d.program, frame)
	if to < 0 {
		if verdict != xdpDrop {
			h.Fatalf("step %d, %s: the director's verdict is %d where it sees nobody", h.happened, d.wire, verdict)
		}
		return nil, nil
	}
	if verdict != xdpRedirect {
		h.Fatalf("step %d, %s: the director's verdict is %d\n%s", h.happened, d.wire, verdict, packet.Describe(frame))
	}
	t := h.read(out)
	if opens && t.to != d.service.Backends[to].Address && h.mayChoose(d, f, to) == t.to.String() {
		h.conclusions.chosen++
		to = h.position(d, t)
	}
	for at := h.expect(t, d.wire, d.service.Backends[to], row, frame[etherLength:]); ; {
		path = append(path, t.to)
		verdict, next := at.twin.Judge(p, row)
		h.note(at, p, row, verdict)
		up, on := at.judge(h, out)
		if verdict != twin.PassesOn {
			if !bytes.Equal(up, frame[etherLength:]) {
				h.Fatalf("step %d: %s does not keep what the twin keeps, over %v, %+v: %+v of %+v",
					h.happened, at.Name, path, row, p, at.twin.Sockets[connection(f)])
			}
			at.deliver(h, up)
			return at, path
		}
		if on == nil {
			h.Fatalf("step %d: %s keeps what the twin passes on, over %v, %+v: %+v of %+v",
				h.happened, at.Name, path, row, p, at.twin.Sockets[connection(f)])
		}
		out, row, t = on, next, h.read(on)
		at = h.expect(t, at.Name, model.TableBackend{Address: row.Hops[row.Next-1]}, row, frame[etherLength:])
	}
}

func (h *life) read(frame []byte) tunnelled {
	h.Helper()
	t, err := readTunnel(frame)
	if err != nil {
		h.Fatalf("step %d: %v:\n%s", h.happened, err, packet.Describe(frame))
	}
	return t
}

// expect checks a packet under way, and returns the host that gets it.
func (h *life) expect(t tunnelled, from string, to model.TableBackend, row *twin.Row, inner []byte) *host {
	h.Helper()
	if t.to != to.Address || !bytes.Equal(t.private, row.Bytes()) || !bytes.Equal(t.inner, inner) {
		h.Fatalf("step %d: %s sends a packet to %v with row %x, the twin to %v with %x; the packet is the same: %v",
			h.happened, from, t.to, t.private, to.Address, row.Bytes(), bytes.Equal(t.inner, inner))
	}
	return h.at[t.to]
}

// mayChoose is the backend that p2c may choose besides the owner, by loads that the twin does not
// know.
func (h *life) mayChoose(d *director, f model.Flow, owner int) string {
	s := &d.service
	slot := s.Ring.SlotOf(f.Hash(s.Salt, s.Affinity))
	row, next := s.Ring.Row(slot), s.Ring.Slots[slot].Next
	fixed := next != model.NoBackend && next&model.ListFlag != 0 && s.Ring.Lists[next&^model.ListFlag].Fixed
	if s.Policy != model.P2C || len(row) < 2 || int(row[0]) != owner || fixed || s.Backends[row[1]].State != model.Active {
		return ""
	}
	return s.Backends[row[1]].Address.String()
}

func (h *life) position(d *director, t tunnelled) int {
	for i, b := range d.service.Backends {
		if b.Address == t.to {
			return i
		}
	}
	h.Fatalf("%v is no backend", t.to)
	return -1
}

// note records what the agent counts, and what it remembers of cookies.
func (h *life) note(at *host, p twin.Packet, row *twin.Row, verdict twin.Verdict) {
	switch verdict {
	case twin.PassesOn:
		at.counts["passed_on"]++
		return
	case twin.LastResort:
		h.conclusions.lastResort++
		at.counts["decap_last_resort"]++
	default:
		at.counts["decap_gue"]++
	}
	if cookie, proves := at.twin.Proves(p, row); proves {
		at.twin.Proven[p.Segment.Connection] = cookie
	}
}

// send sends a client's packet by any director, and reports whether it came to the host that has
// the connection. It must, with the exceptions of docs/internals/consistency.md.
func (h *life) send(c *client, p twin.Packet, frame []byte) bool {
	h.Helper()
	d := h.directors[h.r.IntN(len(h.directors))]
	end, path := h.walk(d, c.flow, p, frame)
	if end == nil {
		return false // this director sees no backend at all: its packets are lost
	}
	if d.revision < c.revision {
		// "Second chance", limits: a director that has not learned of a generation does not name
		// the backends of connections that others placed by it.
		h.conclusions.behind++
		if end != c.host {
			h.conclusions.misdirected++
		}
		return end == c.host
	}
	if h.conclusions.walked++; len(path) > 1 {
		h.conclusions.passed++
	}
	full := h.full(d, c.flow)
	if end != c.host && c.backup && full {
		h.conclusions.crowded++ // "Rows": they have older generations' backups only if there is room
		return false
	}
	if end != c.host && h.tiered && full && placedBy(d, c.tier, c.flow) != c.backend {
		h.conclusions.crowdedOut++ // "Tiers": the same of their older owners
		return false
	}
	if end != c.host {
		h.Fatalf("step %d: a connection of %s (as backup: %v) that a director placed at revision %d: a packet by %s, at %d of %d, went over %v\nrow %s\n%+v there, %+v at its host",
			h.happened, c.host.Name, c.backup, c.revision, d.wire, d.revision, len(h.revisions)-1, path, h.describeRow(d, c.flow),
			end.twin.Sockets[connection(c.flow)], c.host.twin.Sockets[connection(c.flow)])
	}
	return true
}

func (h *life) describeRow(d *director, f model.Flow) string {
	s := &d.service
	var list []string
	for _, c := range s.Ring.Row(s.Ring.SlotOf(f.Hash(s.Salt, s.Affinity))) {
		list = append(list, fmt.Sprint(s.Backends[c].Address, " ", s.Backends[c].State))
	}
	return strings.Join(list, ", ")
}
