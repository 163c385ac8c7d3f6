package flowsync

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"weir.io/weir/internal/retry"
)

const (
	firstPause = 50 * time.Millisecond
	lastPause  = 2 * time.Second
	dialTime   = 2 * time.Second
	doubtTime  = 250 * time.Millisecond // the same for a director without a sign of life, while a start waits for it
	silentTime = 4 * aliveEvery         // after which the other director is gone
	soonPause  = 200 * time.Millisecond // at most, while a start waits for it
)

// subscribe dials a director and remembers what it shares, again and again.
func (s *Sync) subscribe(ctx context.Context, p *peer, port uint16) {
	backoff := retry.Backoff{First: firstPause}
	for ctx.Err() == nil {
		heard, err := s.subscribeOnce(ctx, p, port)
		if ctx.Err() != nil {
			return
		}
		if heard {
			backoff.Reset()
		}
		// A director that is there, and does not take this one for one of the group yet, soon will.
		var unreachable *net.OpError
		if errors.As(err, &unreachable) && unreachable.Op == "dial" || errors.Is(err, errNoFingerprint) {
			p.answered()
		}
		p.fail(err)
		s.log.Debug("director of the group shares no flows", "director", p.address, "error", err)
		select {
		case <-ctx.Done():
		case <-p.dials:
		case <-time.After(p.nextPause(&backoff)):
		}
	}
}

// nextPause is how long to wait before the director is dialed again. While a start waits for it the
// pause stays short, and grows from there when the start no longer waits.
func (p *peer) nextPause(backoff *retry.Backoff) time.Duration {
	backoff.Last = lastPause
	if p.awaited() {
		backoff.Last = soonPause
	}
	return backoff.Next()
}

// errNoFingerprint says that a director has not written its fingerprint.
var (
	errNoFingerprint = errors.New("it has not said by which certificate it is known")
	errNotListed     = errors.New("it is not known yet who is who in the group")
)

// subscribeOnce hears one director until the connection ends; heard says that the director has shared
// something.
func (s *Sync) subscribeOnce(ctx context.Context, p *peer, port uint16) (heard bool, err error) {
	fingerprint, known := s.identities.Fingerprint(p.address)
	switch {
	case !known:
		return false, errNotListed
	case fingerprint == "":
		return false, errNoFingerprint
	}
	dialer := net.Dialer{Timeout: s.patience(p), KeepAlive: aliveEvery, LocalAddr: s.addressFor(p.address)}
	raw, err := dialer.DialContext(ctx, "tcp", net.JoinHostPort(p.address.String(), strconv.Itoa(int(port))))
	if err != nil {
		return false, err
	}
	defer raw.Close()
	defer context.AfterFunc(ctx, func() { raw.Close() })()
	p.connected(raw, fingerprint)
	conn := tls.Client(raw, s.secure(func(shown string) bool { return shown == fingerprint }))
	hello, cancel := context.WithTimeout(ctx, handshakeTime)
	defer cancel()
	if err := conn.HandshakeContext(hello); err != nil {
		return false, fmt.Errorf("agree on a connection: %w", err)
	}
	return s.read(ctx, conn, raw, p)
}

// patience is how long a director may take to answer. A live one may have lost a packet. One that
// has left only its fingerprint, which stays for days, is most likely dead, and a start waits for
// it: if it is still there, cut off from etcd for example, it answers by then.
func (s *Sync) patience(p *peer) time.Duration {
	if p.awaited() && !s.identities.Lives(p.address) {
		return doubtTime
	}
	return dialTime
}

// addressFor is the address by which another director knows this one; nil: none of its family, so
// it takes this one for a stranger.
func (s *Sync) addressFor(other netip.Addr) net.Addr {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, a := range s.own {
		if a.Is4() == other.Is4() {
			return net.TCPAddrFromAddrPort(netip.AddrPortFrom(a, 0))
		}
	}
	return nil
}

func (s *Sync) read(ctx context.Context, conn *tls.Conn, raw net.Conn, p *peer) (heard bool, err error) {
	spoken := versionOf(conn.ConnectionState().NegotiatedProtocol)
	reader, buffer := bufio.NewReaderSize(conn, maxFrame), []byte(nil)
	defer s.publisher.memory.HearResets(p.address, nil)
	for ctx.Err() == nil {
		if err := raw.SetReadDeadline(time.Now().Add(silentTime)); err != nil {
			return heard, err
		}
		kind, content, err := readFrame(reader, &buffer)
		if err != nil {
			s.countGarbage(p, err)
			return heard, err
		}
		if !heard {
			heard = true
			p.noteShares()
			s.log.Info("director of the group shares flows", "director", p.address)
		}
		switch kind {
		case frameAll:
			p.answered()
		case frameFlows:
			flows, err := readFlows(content, spoken)
			if err != nil {
				s.countGarbage(p, err)
				return heard, err
			}
			p.heard.Add(uint64(len(flows)))
			if err := s.publisher.memory.Remember(flows); err != nil {
				return heard, err
			}
		case frameNAT:
			flows, err := readNATFlows(content)
			if spoken < translated {
				err = fmt.Errorf("%s has no frame of kind %d", spoken.protocol(), kind)
			}
			if err != nil {
				s.countGarbage(p, err)
				return heard, err
			}
			p.heard.Add(uint64(len(flows)))
			if err := s.publisher.memory.RememberNAT(flows); err != nil {
				return heard, err
			}
		case frameResets:
			resets, err := readResets(content)
			if spoken == unclassed {
				err = fmt.Errorf("%s has no frame of kind %d", spoken.protocol(), kind)
			}
			if err != nil {
				s.countGarbage(p, err)
				return heard, err
			}
			s.publisher.memory.HearResets(p.address, resets)
		}
	}
	return heard, ctx.Err()
}

// countGarbage counts errors that no director of this version causes: all except the end of a
// connection.
func (s *Sync) countGarbage(p *peer, err error) {
	var network net.Error
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed) || errors.As(err, &network) {
		return
	}
	p.garbage.Add(1)
	s.log.Warn("director of the group says what cannot be understood", "director", p.address, "error", err)
}

// Problem says at which of this host's addresses directors of the group cannot dial it to hear of
// flows; nil: at none.
func (s *Sync) Problem() error {
	s.listening.Lock()
	defer s.listening.Unlock()
	var errs []error
	for _, at := range slices.SortedFunc(maps.Keys(s.notListening), netip.AddrPort.Compare) {
		errs = append(errs, fmt.Errorf("directors of the group cannot share flows with this one at %v: %w", at, s.notListening[at]))
	}
	return errors.Join(errs...)
}

// noteListening remembers why this director cannot listen at an address; nil: it can.
func (s *Sync) noteListening(at netip.AddrPort, err error) {
	s.listening.Lock()
	defer s.listening.Unlock()
	if delete(s.notListening, at); err != nil {
		if s.notListening == nil {
			s.notListening = map[netip.AddrPort]error{}
		}
		s.notListening[at] = err
	}
}

// listen waits at one of this host's addresses for directors that dial.
func (s *Sync) listen(ctx context.Context, at netip.AddrPort) {
	defer s.noteListening(at, nil) // it should no longer listen there
	for said := false; ctx.Err() == nil; {
		listener, err := net.Listen("tcp", at.String())
		s.noteListening(at, err)
		if err != nil {
			if !said {
				s.log.Error("flows cannot be shared with directors of the group yet", "at", at, "error", err)
			}
			said = true
			retry.Sleep(ctx, lastPause)
			continue
		}
		stop := context.AfterFunc(ctx, func() { listener.Close() })
		s.accept(ctx, listener)
		stop()
		listener.Close()
	}
}
