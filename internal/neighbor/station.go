package neighbor

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"

	"weir.io/weir/internal/model"
)

// station is a director on one interface, in one segment or in none.
type station struct {
	at       model.NeighborPlace
	log      *slog.Logger
	guard    *guard
	conflict func(vip model.VIP, with mac)

	link    link // what the sockets are for
	sockets []*os.File
	groups  groups
	own     atomic.Pointer[mac]
	types   atomic.Pointer[tagTypes] // of the tags that the segment's hosts ask with
	broken  atomic.Bool              // a socket has ended by itself: the sockets have to be opened again
	problem string                   // why the sockets could not be opened
	pacer   *limiter                 // of announcements

	announced, answered, limited, conflicts atomic.Uint64
}

// set adapts the station to the current state of the interface, on which these VIPs may be answered
// for, and returns whether the link has to be told everything anew.
func (s *station) set(l link, vips []netip.Addr) (anew bool) {
	anew = !s.link.same(&l)
	if anew || s.broken.Swap(false) {
		s.close()
		if l.problem == "" {
			s.problem = s.open(&l)
		}
	}
	s.link = l
	if len(s.sockets) == 0 {
		return anew
	}
	problem := ""
	if err := s.groups.set(vips); err != nil {
		problem = err.Error()
	}
	if problem != "" && problem != s.problem {
		s.log.Warn("questions about IPv6 addresses may not come in", "interface", s.at.String(), "problem", problem)
	}
	s.problem = problem
	return anew
}

// why returns why nothing is answered here.
func (s *station) why() string {
	if s.link.problem != "" {
		return s.link.problem
	}
	return s.problem
}

// works reports whether frames come in and go out.
func (s *station) works() bool { return len(s.sockets) > 0 }

func (s *station) open(l *link) (problem string) {
	s.groups = groups{index: l.index, where: map[netip.Addr]int{}}
	own := l.address
	s.own.Store(&own)
	s.types.Store(usual(len(l.tags)))
	for _, k := range kinds {
		socket, err := openSocket(l.index, l.tags, k.etherType, k.only)
		if err != nil {
			s.close()
			return fmt.Sprintf("listen for %s: %v", k.name, err)
		}
		s.sockets = append(s.sockets, socket)
		go s.listen(socket, l.tags)
	}
	return ""
}

func (s *station) close() {
	for _, socket := range s.sockets {
		socket.Close()
	}
	s.sockets = nil
	s.groups.close()
}

// listen answers questions from a socket until it is closed. Frames have these tags.
func (s *station) listen(socket *os.File, tags []uint16) {
	frame, aside := make([]byte, 2048), make([]byte, 256)
	limit := newAskers()
	for {
		n, outer, err := s.read(socket, tags, frame, aside)
		switch {
		case errors.Is(err, syscall.ENETDOWN): // returned once, when the link goes down
			continue
		case errors.Is(err, fs.ErrClosed):
			return
		case err != nil:
			s.log.Warn("questions cannot be heard", "interface", s.at.String(), "error", err)
			s.broken.Store(true)
			return
		}
		plain, inner := untagged(frame[:n], len(tags))
		if h, ok := parse(plain); ok {
			s.hear(h, &question{socket, mac(plain[6:12]), tags, tagTypes{outer, inner}}, limit)
		}
	}
}

// read reads a frame, and the type of the outer one of its tags.
func (s *station) read(socket *os.File, tags []uint16, frame, aside []byte) (n int, outer uint16, err error) {
	if len(tags) > 0 {
		return readTagged(socket, frame, aside)
	}
	n, err = socket.Read(frame)
	return n, 0, err
}

// question is how a frame came in, and its answer goes out.
type question struct {
	socket *os.File
	asker  mac
	tags   []uint16
	types  tagTypes
}

// vip returns the VIP of an address here.
func (s *station) vip(a netip.Addr) model.VIP { return model.VIP{Segment: s.at.Segment, Address: a} }

// hear answers a question, and notes other hosts that claim a VIP.
func (s *station) hear(h heard, q *question, limit *askers) {
	own := *s.own.Load()
	if h.from == own {
		return // one of this director's own frames that came back
	}
	if h.claims.IsValid() && s.guard.send(s.at, s.vip(h.claims), func() { s.conflicts.Add(1) }) {
		s.conflict(s.vip(h.claims), h.from)
	}
	if !h.asks.IsValid() {
		return
	}
	s.guard.send(s.at, s.vip(h.asks), func() {
		if !limit.allow(q.asker, s.guard.clock()) {
			s.limited.Add(1)
			return
		}
		if len(q.tags) > 0 && *s.types.Load() != q.types {
			s.types.Store(&q.types)
		}
		if write(q.socket, tagged(answer(h, own), q.tags, &q.types)) == nil {
			s.answered.Add(1)
		}
	})
}

// pace reports whether one more VIP may be announced now.
func (s *station) pace(perSecond uint32, now time.Duration) bool {
	if s.pacer == nil || s.pacer.Limit() != rate.Limit(perSecond) {
		s.pacer = newLimiter(perSecond)
	}
	return s.pacer.allow(now)
}

// announce tells all hosts on the link that a VIP is here, if it is.
func (s *station) announce(vip netip.Addr) bool {
	if !s.works() {
		return false
	}
	own := *s.own.Load()
	return s.guard.send(s.at, s.vip(vip), func() {
		for _, frame := range announcements(vip, own) {
			if err := write(s.sockets[0], tagged(frame, s.link.tags, s.types.Load())); err != nil {
				s.log.Debug("a VIP cannot be announced", "interface", s.at.String(), "vip", vip, "error", err)
				return
			}
			s.announced.Add(1)
		}
	})
}

// write sends a frame now or not at all: it must not wait for a queue while it holds the guard.
func write(socket *os.File, frame []byte) error {
	conn, err := socket.SyscallConn()
	if err != nil {
		return err
	}
	control := conn.Control(func(fd uintptr) { _, err = unix.Write(int(fd), frame) })
	return errors.Join(control, err)
}

// status returns the state of the station; count adds its counters.
func (s *station) status() model.NeighborInterfaceStatus {
	status := model.NeighborInterfaceStatus{Name: s.at.Interface, Segment: s.at.Segment, Problem: s.why()}
	if s.works() {
		status.MAC = s.link.address.String()
	}
	return status
}

// count may be called at any time.
func (s *station) count(status *model.NeighborInterfaceStatus) {
	status.Announced, status.Answered = s.announced.Load(), s.answered.Load()
	status.Limited, status.Conflicts = s.limited.Load(), s.conflicts.Load()
}

// defence is the least time between two announcements that are made because another host claims a
// VIP (RFC 5227 2.4): else two hosts that insist would go on for ever.
const defence = 10 * time.Second

// contested is how long after the last claim of another host a VIP is a problem.
const contested = 3 * defence
