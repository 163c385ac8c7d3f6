package health

import (
	"context"
	"net/netip"
	"time"

	"weir.io/weir/internal/model"
)

// A probe that gets no answer from the VIP says that something is wrong with the backend or the way
// there, but not what. More probes find out: to the backend's own address, and with short segments.
// They are made once, and again while the backend stays silent.

// diagnosis is the result of more probes of a backend.
type diagnosis struct {
	of      Failure  // the failure that they were made for
	failure *Failure // the cause that they found; nil: they found none
	at      time.Time
	busy    bool // they are being made
}

const (
	// mostDiagnoses bounds the diagnoses that are made at the same time: all backends of a rack
	// that is cut off have the same. They are shared by segment, like probes.
	mostDiagnoses = 16
	// diagnosisHolds is how long a diagnosis is valid.
	diagnosisHolds = 10 * time.Second
	// mostPatience is how long each of its probes waits at most.
	mostPatience = time.Second
	// refusalPatience is longer than the pause that Linux makes between two ICMP errors to
	// the same host, and than the first one of TCP between two SYNs.
	refusalPatience = 1500 * time.Millisecond
	// shortSegment is a TCP segment size, in bytes, that every way takes.
	shortSegment = 500
)

// diagnosed returns what a diagnosis says about a failure, and begins one if there is none. The lock
// is held.
func (l *launch) diagnosed(a *attempt, f *Failure) *Failure {
	t := l.target
	if f == nil || !a.toVIP() || (f.Reason != Timeout && f.Reason != Unreachable) {
		return f
	}
	known := t.diagnosis.of == *f && time.Since(t.diagnosis.at) < diagnosisHolds
	if !known && !t.diagnosis.busy && l.lines.mayHave(l.line, l.line.diagnoses, mostDiagnoses-l.diagnoses) {
		l.diagnoses++
		l.line.diagnoses++
		t.diagnosis.busy = true
		l.done.Go(func() { l.diagnose(a, *f) })
	}
	if t.diagnosis.of == *f && t.diagnosis.failure != nil {
		return t.diagnosis.failure
	}
	return f
}

// diagnose finds out why a probe has failed.
func (l *launch) diagnose(a *attempt, of Failure) {
	found := l.causeOf(a)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.diagnoses--
	l.line.diagnoses--
	l.lines.close(l.line)
	t := l.target
	before := t.diagnosis.failure
	t.diagnosis = diagnosis{of: of, failure: found, at: time.Now()}
	if found == nil || t.version != l.version || t.gone {
		return
	}
	if t.last.failure != nil && *t.last.failure == of {
		t.last.failure = found
	}
	if before != nil && *before == *found {
		return
	}
	l.log.Warn("probes say why a backend does not answer", "service", t.check.Service, "backend", t.check.Backend,
		"reason", found.Reason, "detail", found.Detail)
}

// causeOf makes the probes; nil: they find nothing new.
func (l *launch) causeOf(a *attempt) *Failure {
	if a.at == shaking || a.at == asking {
		return l.tooLong(a)
	}
	if l.check.Way.Backend.Segment != (model.Segment{}) {
		return nil // this host's routes lead to another network
	}
	own := l.again(a, model.Way{To: l.check.To}, 0)
	if own != nil && own.Reason != Refused {
		return nil // it does not answer there either, or the result says nothing
	}
	backend, vip := l.check.To.Addr(), a.way.Target().Addr()
	if l.check.Way.Backend.Mode == model.L2DSR {
		return failure(NoVIP, "%v answers, and not to what is for %v: the VIP is missing on lo, or something drops it", backend, vip)
	}
	if l.refusesTunnel(a, backend) {
		return failure(NoTunnel, "%v answers, and refuses the tunnel: nothing unwraps %v there", backend, l.check.Way.Backend.Mode)
	}
	return failure(NoTunnel, "%v answers, and not through the tunnel to %v: nothing unwraps %v there, the VIP is missing on lo, or something drops it",
		backend, vip, l.check.Way.Backend.Mode)
}

// tooLong says that short packets are answered and long ones are not.
func (l *launch) tooLong(a *attempt) *Failure {
	if l.check.Target.Service.Protocol != model.TCP {
		return nil
	}
	f := l.again(a, l.path.Way(&l.check), shortSegment)
	if f != nil && f.Reason == Timeout || f != nil && f.Reason == Local {
		return nil
	}
	return failure(MTU, "short packets are answered, and those of %d bytes are not: something on the way takes no such long ones", a.way.MTU)
}

// again makes the probe once more, in another way; for kinds that only connect, and where the
// request does not matter, the connection is enough.
func (l *launch) again(first *attempt, way model.Way, segment int) *Failure {
	a := &attempt{check: first.check, way: way, segment: segment, timeout: min(first.timeout, mostPatience)}
	ctx, cancel := context.WithTimeout(l.Checker.ctx, a.timeout)
	defer cancel()
	var err error
	if l.probe == nil || segment == 0 && l.check.Target.Service.Protocol == model.TCP {
		a.at = connecting
		conn, failed := a.connect(ctx)
		if err = failed; err == nil {
			conn.Close()
		}
	} else {
		err = l.probe(ctx, a)
	}
	if err == nil {
		return nil
	}
	return explain(err, a.at, a.timeout)
}

// refusesTunnel probes again and says whether the backend's host answers by ICMP that no receiver
// for the outer headers is there.
func (l *launch) refusesTunnel(a *attempt, backend netip.Addr) bool {
	ctx, cancel := context.WithTimeout(l.Checker.ctx, refusalPatience)
	defer cancel()
	refused := make(chan bool, 1)
	heard, err := listenRefusals(ctx, backend)
	if err != nil {
		return false
	}
	go func() { refused <- heard(); cancel() }()
	again := &attempt{check: a.check, way: a.way, timeout: a.timeout, at: connecting}
	if l.check.Target.Service.Protocol == model.TCP {
		if conn, err := again.connect(ctx); err == nil {
			conn.Close()
		}
	} else {
		_ = l.probe(ctx, again)
	}
	<-ctx.Done()
	return <-refused
}
