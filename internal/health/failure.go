package health

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"
	"unicode"

	"weir.io/weir/internal/model"
)

// Reason is why a probe has failed. It is a label of metrics; docs/operate/health.md says what
// an operator makes of each.
type Reason string

// The reasons of failures.
const (
	Refused     Reason = "refused"     // an RST, or ICMP: the port is closed
	Unreachable Reason = "unreachable" // no route, no neighbor, or ICMP that says so
	Timeout     Reason = "timeout"     // no answer, or not all of it, in time
	Closed      Reason = "closed"      // the connection ended before the answer
	Certificate Reason = "certificate" // the certificate is not for the name, not trusted or not valid
	Handshake   Reason = "tls"         // the TLS handshake failed otherwise
	Malformed   Reason = "malformed"   // the answer is of another protocol
	Status      Reason = "status"      // HTTP, SMTP: the status is not one of the good ones
	Body        Reason = "body"        // HTTP, UDP: the answer lacks what is looked for
	NotServing  Reason = "not-serving" // gRPC: the server says so, or does not know the service
	RCode       Reason = "rcode"       // DNS: the response code is not one of the good ones
	ARP         Reason = model.FaultARP
	NoAddress   Reason = model.FaultNoAddress
	NoVIP       Reason = "vip"    // the backend answers, but not at the VIP
	NoTunnel    Reason = "tunnel" // the backend answers, but not through the tunnel
	MTU         Reason = "mtu"    // short packets are answered, but long ones are not
	Exit        Reason = "exit"   // the program ended with another status than 0, or was killed
	Local       Reason = "local"  // this host could not make the probe: not the backend's failure
)

// Reasons are all of them.
var Reasons = []Reason{Refused, Unreachable, Timeout, Closed, Certificate, Handshake, Malformed, Status, Body, NotServing, RCode, ARP, NoAddress, NoVIP, NoTunnel, MTU, Exit, Local}

// Failure is what became of a probe that did not succeed.
type Failure struct {
	Reason Reason
	Detail string // for people
}

// Error returns the detail.
func (f *Failure) Error() string { return f.Detail }

func failure(reason Reason, format string, args ...any) *Failure {
	return &Failure{reason, fmt.Sprintf(format, args...)}
}

// step is what a probe does when it fails.
type step struct {
	doing  string // "to connect"
	silent string // what it means if no answer comes, for people
}

var (
	connecting = step{"to connect", "no answer to a SYN within %v: the host is gone, or something drops it"}
	shaking    = step{"in the TLS handshake", "connected, and the TLS handshake did not end within %v"}
	asking     = step{"waiting for the answer", "connected, and no answer within %v"}
	running    = step{"running", "the program did not end within %v, and was killed"}
	sending    = step{"waiting for the answer", "no answer within %v"}
)

// The errors that say that this host cannot make probes. They say nothing about the backend.
var local = []error{
	syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM, syscall.EADDRNOTAVAIL,
	syscall.EACCES, syscall.EPERM, syscall.EAFNOSUPPORT, syscall.EPROTONOSUPPORT, syscall.EADDRINUSE,
}

// explain says what an error at a step means.
func explain(err error, at step, timeout time.Duration) *Failure {
	var (
		known       *Failure
		certificate *tls.CertificateVerificationError
		record      tls.RecordHeaderError
		remote      *net.OpError
		timedOut    net.Error
	)
	switch {
	case errors.As(err, &known):
		return known
	case errors.Is(err, syscall.ECONNREFUSED):
		return failure(Refused, "the port is closed: connection refused")
	case isOneOf(err, syscall.EHOSTUNREACH, syscall.ENETUNREACH, syscall.EHOSTDOWN, syscall.ENETDOWN, syscall.ENOPROTOOPT):
		return failure(Unreachable, "%v %s", bare(err), at.doing)
	case isOneOf(err, local...):
		return failure(Local, "this host cannot make the probe: %v", bare(err))
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded), errors.As(err, &timedOut) && timedOut.Timeout():
		return failure(Timeout, at.silent, timeout)
	case errors.As(err, &certificate):
		return failure(Certificate, "%v", certificate.Err)
	case errors.As(err, &record):
		return failure(Handshake, "the port does not speak TLS")
	case at == shaking && errors.As(err, &remote) && remote.Op == "remote error":
		return failure(Handshake, "the server refused the handshake: %v", remote.Err)
	case isOneOf(err, io.EOF, io.ErrUnexpectedEOF, syscall.ECONNRESET, syscall.EPIPE, net.ErrClosed):
		return failure(Closed, "the connection was closed %s", at.doing)
	case at == shaking:
		return failure(Handshake, "%v", err)
	}
	return failure(Malformed, "%v %s", err, at.doing)
}

// mostDetail bounds what is kept of a detail, in bytes.
const mostDetail = 256

// printable makes a detail safe for terminals and logs: backends can put text into it.
func printable(detail string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '.'
		}
		return r
	}, strings.ToValidUTF8(detail[:min(len(detail), mostDetail)], "."))
}

func isOneOf(err error, targets ...error) bool {
	return slices.ContainsFunc(targets, func(t error) bool { return errors.Is(err, t) })
}

// bare returns the kernel's own error, without the addresses that messages have elsewhere.
func bare(err error) error {
	var number syscall.Errno
	if errors.As(err, &number) {
		return number
	}
	return err
}
