package health

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"syscall"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"weir.io/weir/internal/model"
)

// A probe of redirection is the same SYN by which a director hands a connection over, from this
// host itself: with the option that names the VIP, to the backend's own address and port. Only a
// host on which both of the agent's programs are attached, and know the service, answers with the
// same option; no process on it is involved.

// Unechoed says that a backend's host answers without the option: no agent there redirects.
const Unechoed Reason = "unechoed"

// RedirectReasons are the reasons why a probe finds that connections cannot be redirected to a
// backend.
var RedirectReasons = []Reason{Unechoed, Refused, Unreachable, Timeout, Malformed, Local}

var handing = step{"waiting for the answer", "no answer to a SYN with the option within %v: the host is gone, or something drops it"}

// The parts of TCP's header that are read (RFC 9293).
const (
	tcpHeader = 20
	flagSYN   = 0x02
	flagRST   = 0x04
	flagACK   = 0x10
)

// redirects makes probes of redirection. They are answered at a port of this host that no other
// program uses: a socket listens there and takes no connection, so the kernel answers SYN-ACKs with
// an RST, and the backend's server sees no connection.
type redirects struct {
	ports perFamily
}

// probe sends a probe from a raw socket that is connected to the backend.
func (r *redirects) probe(ctx context.Context, a *attempt) error {
	a.at = handing
	to := a.way.To
	port, err := r.ports.of(to.Addr())
	if err != nil {
		return failure(Local, "this host cannot make the probe: %v", err)
	}
	network := "ip6:6"
	if to.Addr().Is4() {
		network = "ip4:6"
	}
	conn, err := a.dial(ctx, network, to.Addr().String(), func(fd int) error {
		if err := attach(fd, answersTo(port, to)); err != nil {
			return err
		}
		return a.allErrors(fd)
	})
	if err != nil {
		return err
	}
	defer conn.Close()
	conn = bound(ctx, conn)
	from, _ := netip.AddrFromSlice(conn.LocalAddr().(*net.IPAddr).IP)
	service := &a.check.Target.Service
	syn := handingSYN{
		from: netip.AddrPortFrom(from.Unmap(), port), to: to, vip: netip.AddrPortFrom(service.VIP, service.Port.First),
		sequence: rand.Uint32(), time: rand.Uint32(),
	}
	if _, err := conn.Write(syn.bytes()); err != nil {
		return err
	}
	return syn.await(conn.(*boundConn).Conn.(*net.IPConn))
}

// handingSYN is a SYN by which a director hands a connection over.
type handingSYN struct {
	from, to, vip  netip.AddrPort
	sequence, time uint32
}

// redirectExperiment is the option's number among RFC 6994's experiments, and its length
// (bpf/lib/redirect_option.h).
const (
	experiment         = 254
	redirectExperiment = 0x5752
	redirectLength     = 10
)

// option names the VIP to which a connection was begun; NOPs follow it.
func (s *handingSYN) option() []byte {
	vip := s.vip.Addr().AsSlice()
	option := binary.BigEndian.AppendUint16([]byte{experiment, redirectLength}, redirectExperiment)
	option = binary.BigEndian.AppendUint16(append(option, vip[len(vip)-4:]...), s.vip.Port())
	return append(option, 1, 1)
}

// bytes is the SYN as Linux makes it, like clients' SYNs: the answer to a SYN with fewer options
// might have room for the option where the answer to clients has none.
func (s *handingSYN) bytes() []byte {
	segment := uint16(1460)
	if s.to.Addr().Is6() {
		segment = 1440
	}
	b := binary.BigEndian.AppendUint16(nil, s.from.Port())
	b = binary.BigEndian.AppendUint16(b, s.to.Port())
	b = binary.BigEndian.AppendUint32(b, s.sequence)
	b = append(b, 0, 0, 0, 0, 0, flagSYN) // acknowledges nothing; its length follows
	b = binary.BigEndian.AppendUint16(b, 0xfaf0)
	b = append(b, 0, 0, 0, 0)                                    // checksum, no urgent data
	b = binary.BigEndian.AppendUint16(append(b, 2, 4), segment)  // RFC 9293
	b = append(b, 4, 2)                                          // RFC 2018
	b = binary.BigEndian.AppendUint32(append(b, 8, 10), s.time)  // RFC 7323
	b = append(append(b, 0, 0, 0, 0, 1, 3, 3, 7), s.option()...) // RFC 7323
	b[12] = byte(len(b) / 4 << 4)                                // in words
	binary.BigEndian.PutUint16(b[16:], model.Checksum(unix.IPPROTO_TCP, s.from.Addr(), s.to.Addr(), b))
	return b
}

// await reads until the answer comes.
func (s *handingSYN) await(conn *net.IPConn) error {
	buffer := make([]byte, 1500)
	for {
		n, _, err := conn.ReadFromIP(buffer) // without the IPv4 header
		if err != nil {
			return err
		}
		if answers, err := s.isAnsweredBy(buffer[:n]); answers {
			return err
		}
	}
}

// isAnsweredBy says whether a segment answers the SYN, and how. An RST with the option is as good
// as a SYN-ACK: both of the agent's programs had to see a packet for it. Whether a server listens
// is for health checks to say.
func (s *handingSYN) isAnsweredBy(segment []byte) (bool, error) {
	if len(segment) < tcpHeader || binary.BigEndian.Uint32(segment[8:]) != s.sequence+1 {
		return false, nil
	}
	what := "a SYN-ACK"
	if segment[13]&flagRST != 0 {
		what = "an RST"
	}
	length := int(segment[12]>>4) * 4
	if length < tcpHeader || length > len(segment) {
		return true, failure(Malformed, "%s whose header is cut short", what)
	}
	if !hasOption(segment[tcpHeader:length], s.option()[:redirectLength]) {
		return true, failure(Unechoed, "%s without the option: no agent there redirects %v to %v, or something on the way takes the option out", what, s.vip, s.to)
	}
	return true, nil
}

// hasOption says whether an option is among others. Options after one with an invalid length do not
// count.
func hasOption(options, option []byte) bool {
	for len(options) > 0 && options[0] != 0 {
		if options[0] == 1 {
			options = options[1:]
			continue
		}
		if len(options) < 2 || options[1] < 2 || int(options[1]) > len(options) {
			return false
		}
		if string(options[:options[1]]) == string(option) {
			return true
		}
		options = options[options[1]:]
	}
	return false
}

// pastHeader begins a filter: the register says where the header with the ports begins. Raw sockets of
// IPv4 see the IP header, those of IPv6 do not.
func pastHeader(from netip.AddrPort) bpf.Instruction {
	if from.Addr().Is4() {
		return bpf.LoadMemShift{Off: 0}
	}
	return bpf.LoadConstant{Dst: bpf.RegX, Val: 0}
}

// answersTo lets the answers to a probe through: SYN-ACKs and RSTs from there to this port.
func answersTo(port uint16, from netip.AddrPort) []bpf.Instruction {
	return []bpf.Instruction{
		pastHeader(from),
		bpf.LoadIndirect{Off: 0, Size: 2},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: uint32(from.Port()), SkipTrue: 5},
		bpf.LoadIndirect{Off: 2, Size: 2},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: uint32(port), SkipTrue: 3},
		bpf.LoadIndirect{Off: 13, Size: 1},
		bpf.JumpIf{Cond: bpf.JumpBitsSet, Val: flagSYN | flagRST, SkipFalse: 1},
		bpf.RetConstant{Val: 0xffff},
		bpf.RetConstant{Val: 0},
	}
}

// answersOnly makes a listening socket drop connection attempts.
var answersOnly = []bpf.Instruction{
	bpf.LoadAbsolute{Off: 13, Size: 1},
	bpf.JumpIf{Cond: bpf.JumpBitsSet, Val: flagACK | flagRST, SkipFalse: 1},
	bpf.RetConstant{Val: 0xffff},
	bpf.RetConstant{Val: 0},
}

func attach(fd int, program []bpf.Instruction) error {
	raw, err := bpf.Assemble(program)
	if err != nil {
		return fmt.Errorf("assemble filter: %w", err)
	}
	filters := make([]unix.SockFilter, len(raw))
	for i, in := range raw {
		filters[i] = unix.SockFilter{Code: in.Op, Jt: in.Jt, Jf: in.Jf, K: in.K}
	}
	return unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: uint16(len(filters)), Filter: &filters[0]})
}

// takeAnswers prepares a socket that will listen for redirects. By its priority the director's
// program knows that packets to it are no replies to clients (bpf/director/nat/nat.h).
func takeAnswers(_, _ string, socket syscall.RawConn) (err error) {
	failed := socket.Control(func(fd uintptr) {
		if err = attach(int(fd), answersOnly); err == nil {
			err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PRIORITY, model.RedirectProbePriority)
		}
	})
	if failed != nil {
		return failed
	}
	return err
}

// perFamily is a port of this host for each family, which is taken when it is first needed.
type perFamily struct {
	mu        sync.Mutex
	listeners map[string]net.Listener
}

// of returns the port for packets to an address.
func (p *perFamily) of(to netip.Addr) (uint16, error) {
	network := "tcp6"
	if to.Is4() {
		network = "tcp4"
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	l := p.listeners[network]
	if l == nil {
		config := net.ListenConfig{Control: takeAnswers, KeepAlive: -1}
		config.SetMultipathTCP(false)
		var err error
		if l, err = config.Listen(context.Background(), network, ":0"); err != nil {
			return 0, err
		}
		if p.listeners == nil {
			p.listeners = map[string]net.Listener{}
		}
		p.listeners[network] = l
	}
	return l.Addr().(*net.TCPAddr).AddrPort().Port(), nil
}

func (p *perFamily) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, l := range p.listeners {
		_ = l.Close() // there is no peer
	}
	p.listeners = nil
}
