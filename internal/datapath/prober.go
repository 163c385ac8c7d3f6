package datapath

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// Every probeEvery each other director of the group is asked for. One that leaves probesMissed
// questions in a row without an answer is not there.
const (
	probeEvery   = time.Second
	probesMissed = 3
)

// probePort is GUE_PORT.
const probePort = 6080

// prober finds out which directors of the group are there. Their programs answer, not their
// processes: what counts is which directors forward.
type prober struct {
	log     *slog.Logger
	changed func() // called when a director has begun or ceased to answer
	secret  uint64 // in every question: no other host can answer it
	stop    chan struct{}
	done    sync.WaitGroup

	mu      sync.Mutex
	closed  bool
	others  map[netip.Addr]*probed
	sockets map[bool]*net.UDPConn // by "is IPv4"
	round   uint32
}

// probed is what is known of one director.
type probed struct {
	since    uint32 // round in which it was first asked for
	answered uint32 // last round that it has answered; 0: none
	there    bool
}

func startProber(log *slog.Logger, changed func()) *prober {
	p := &prober{log: log, changed: changed, secret: rand.Uint64(), stop: make(chan struct{}), others: map[netip.Addr]*probed{}, sockets: map[bool]*net.UDPConn{}}
	p.done.Go(func() {
		tick := time.NewTicker(probeEvery)
		defer tick.Stop()
		for {
			select {
			case <-p.stop:
				return
			case <-tick.C:
				p.next()
			}
		}
	})
	return p
}

func (p *prober) close() {
	p.mu.Lock()
	p.closed = true
	for _, socket := range p.sockets {
		socket.Close()
	}
	p.mu.Unlock()
	close(p.stop)
	p.done.Wait()
}

// ask makes the prober ask for exactly these directors. The sockets are made here, in the caller's
// network namespace.
func (p *prober) ask(others []netip.Addr) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil
	}
	maps.DeleteFunc(p.others, func(a netip.Addr, _ *probed) bool { return !slices.Contains(others, a) })
	var fresh []netip.Addr
	for _, a := range others {
		if p.others[a] != nil {
			continue
		}
		if err := p.open(a.Is4()); err != nil {
			return err
		}
		p.round = max(p.round, 1)
		p.others[a] = &probed{since: p.round}
		fresh = append(fresh, a)
	}
	p.send(fresh)
	return nil
}

// open makes the socket of a family, once.
func (p *prober) open(is4 bool) error {
	if p.sockets[is4] != nil {
		return nil
	}
	socket, err := net.ListenUDP(map[bool]string{true: "udp4", false: "udp6"}[is4], nil)
	if err != nil {
		return fmt.Errorf("open socket to ask for the group's directors: %w", err)
	}
	p.sockets[is4] = socket
	p.done.Go(func() { p.listen(socket) })
	return nil
}

// question is struct probe after its UDP header, followed by what the answer is recognized by.
func question(secret uint64, round uint32) []byte {
	q := []byte{0x20, 0x57, 0, 0, 'w', 'e', 'i', 'r'} // GUE_CONTROL, PROBE_TYPE, flags, PROBE_MAGIC
	q = binary.BigEndian.AppendUint64(q, secret)
	return binary.BigEndian.AppendUint32(q, round)
}

// send asks these directors. One that cannot be reached does not answer, which is all that matters.
func (p *prober) send(to []netip.Addr) {
	for _, a := range to {
		if _, err := p.sockets[a.Is4()].WriteToUDPAddrPort(question(p.secret, p.round), netip.AddrPortFrom(a, probePort)); err != nil {
			p.log.Debug("ask for director of the group", "director", a, "error", err)
		}
	}
}

// next checks which directors have missed too many answers, and begins another round.
func (p *prober) next() {
	p.mu.Lock()
	news := p.missed()
	for a, o := range p.others {
		if p.round == o.since { // it has had its time to answer
			news = true
			if !o.there {
				p.log.Warn("director of the group has not answered yet: it gets fragments when it does, on a link that it shares with this host", "director", a)
			}
		}
	}
	p.round++
	p.send(slices.Collect(maps.Keys(p.others)))
	p.mu.Unlock()
	if news {
		p.changed()
	}
}

// missed gives up directors that have left too many questions unanswered, and reports whether there
// were any.
func (p *prober) missed() (news bool) {
	for _, o := range p.others {
		if o.there && p.round-o.answered >= probesMissed {
			o.there, news = false, true
		}
	}
	return news
}

// listen takes answers: each is its question, sent back by the director's program.
func (p *prober) listen(socket *net.UDPConn) {
	buffer := make([]byte, 64)
	for {
		n, from, err := socket.ReadFromUDPAddrPort(buffer)
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil:
			continue // from an ICMP error: no director is there
		}
		if p.take(netip.AddrPortFrom(from.Addr().Unmap(), from.Port()), buffer[:n]) {
			p.changed()
		}
	}
}

// take notes an answer, and reports whether it is news.
func (p *prober) take(from netip.AddrPort, answer []byte) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	o := p.others[from.Addr()]
	if o == nil || from.Port() != probePort || len(answer) != len(question(0, 0)) {
		return false
	}
	round := binary.BigEndian.Uint32(answer[len(answer)-4:])
	if !bytes.Equal(answer, question(p.secret, round)) || p.round-round >= probesMissed {
		return false
	}
	o.answered = max(o.answered, round)
	if o.there {
		return false
	}
	o.there = true
	return true
}

// answers says which directors are there, and whether all of them have had the time to answer.
func (p *prober) answers() (there map[netip.Addr]bool, decided bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	there, decided = map[netip.Addr]bool{}, true
	for a, o := range p.others {
		there[a] = o.there
		decided = decided && (o.there || p.round > o.since)
	}
	return there, decided
}
