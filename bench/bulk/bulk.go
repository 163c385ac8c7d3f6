// Package bulk is a lab in which the work of a backend's host for a bulk transfer can be told from
// all other work:
//
//	client --- director --- plain, xdp, tc          CPU 0 --- CPU 1
//
// The director's and the client's work is done on one CPU, the backends' on the
// other. The backends differ in how the director sends to them and in how an agent
// catches it there; their cables, and the packets inside of the tunnels, are alike.
package bulk

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"time"

	"weir.io/weir/internal/model"
	"weir.io/weir/lab/netlab"
	"weir.io/weir/lab/process"
)

// The CPUs of the backends, and of everything before them.
const (
	sendingCPU = 0
	backendCPU = 1
)

// The tunnels' cables have room for tunnel headers around what the client sends: the segments are
// the same with and without tunnels.
const (
	clientMTU = 1500
	tunnelMTU = 9000
)

// Subject is a way by which packets reach a backend.
type Subject struct {
	Name   string
	Mode   model.Mode
	Attach string // how the backend's agent catches tunnels; empty: it has no agent
	Routed bool   // by the director's kernel, without weir
}

// Subjects are what is compared. The first one shows what a backend's host does with the same
// frames without tunnel and agent: the same XDP program sends them by l2dsr, unchanged, over a
// cable like the others'. Routed frames are handed to a veth as the kernel's own buffers, which no
// real cable could carry.
var Subjects = []Subject{
	{Name: "direct", Mode: model.L2DSR},
	{Name: "routed", Routed: true},
	{Name: "ipip-xdp", Mode: model.IPIP, Attach: "xdp"},
	{Name: "gue-xdp", Mode: model.GUE, Attach: "xdp"},
	{Name: "ipip-tc", Mode: model.IPIP, Attach: "tc"},
	{Name: "gue-tc", Mode: model.GUE, Attach: "tc"},
}

// backend is a host and what measures its work.
type backend struct {
	host   *netlab.Host
	napi   *process.NAPI
	number int
}

// Bulk is the lab.
type Bulk struct {
	client   *netlab.Host
	director *netlab.Host
	backends map[string]*backend // by Subject.Attach
}

// New builds the lab and returns when the director forwards. Closing the lab ends it.
func New(ctx context.Context, lab *netlab.Lab) (*Bulk, error) {
	b := &Bulk{client: lab.Host("client"), director: lab.Router("director"), backends: map[string]*backend{}}
	lab.Link(b.client, b.director, netlab.LinkOptions{XDP: true, MTU: clientMTU, A: []string{"10.0.0.2/24"}, B: []string{"10.0.0.1/24"}})
	b.client.Route("default", "10.0.0.1")
	for i, attach := range []string{"", "xdp", "tc"} {
		if err := b.connect(lab, i+1, attach); err != nil {
			return nil, err
		}
	}
	for _, s := range Subjects {
		if s.Attach == "" && !s.Routed {
			b.backends[""].host.Address("lo", s.address().String()+"/32")
		}
	}
	if err := lab.Err(); err != nil {
		return nil, err
	}
	if err := b.startWeir(ctx); err != nil {
		return nil, err
	}
	return b, lab.Err()
}

// connect cables a backend to the director. Each end handles arriving packets in threads of its
// own: otherwise a backend's packets would be handled in the backend's time all the way to the
// client.
func (b *Bulk) connect(lab *netlab.Lab, number int, attach string) error {
	h := lab.Host("backend" + attach)
	link := lab.Link(b.director, h, netlab.LinkOptions{XDP: true, MTU: tunnelMTU,
		A: []string{directorAddress(number).String() + "/24"}, B: []string{backendAddress(number).String() + "/24"}})
	h.Route("default", directorAddress(number).String())
	if err := lab.Err(); err != nil {
		return err
	}
	if _, err := process.ThreadNAPI(link.A, sendingCPU); err != nil {
		return err
	}
	napi, err := process.ThreadNAPI(link.B, backendCPU)
	b.backends[attach] = &backend{h, napi, number}
	return err
}

func backendAddress(number int) netip.Addr { return netip.AddrFrom4([4]byte{10, 1, byte(number), 2}) }

// directorAddress is the director's address on a backend's cable, where tunnels come from.
func directorAddress(number int) netip.Addr { return netip.AddrFrom4([4]byte{10, 1, byte(number), 1}) }

// address returns the subject's VIP, or the backend's own address if there is none.
func (s Subject) address() netip.Addr {
	if s.Routed {
		return backendAddress(1)
	}
	for i := range Subjects {
		if Subjects[i].Name == s.Name {
			return netip.AddrFrom4([4]byte{198, 18, 0, byte(i + 1)}) // RFC 2544 appendix C.2.2
		}
	}
	panic("no such subject: " + s.Name)
}

func (b *Bulk) startWeir(ctx context.Context) error {
	shared := model.Config{}
	vips := map[string][]netip.Addr{}
	for _, s := range Subjects {
		if s.Routed {
			continue
		}
		shared.Services = append(shared.Services, process.Service(s.Name, s.address(), port, s.Mode, backendAddress(b.backends[s.Attach].number)))
		vips[s.Attach] = append(vips[s.Attach], s.address())
	}
	for _, backend := range b.backends {
		shared.Directors = append(shared.Directors, netip.PrefixFrom(directorAddress(backend.number), 32))
	}
	for attach, backend := range b.backends {
		if attach == "" {
			continue
		}
		if _, err := process.RunAgents(ctx, shared, attach, map[*netlab.Host][]netip.Addr{backend.host: vips[attach]}); err != nil {
			return err
		}
	}
	_, err := process.RunDirector(ctx, b.director, shared)
	return err
}

// port is iperf3's, for its control connection and its data.
const port = 5201

// window bounds the bytes that iperf3 does not count. It stops reading when the client says that all
// is sent. The bytes in buffers have taken time by then, and are not read.
const window = "1M"

// Result is what one transfer cost the backend.
type Result struct {
	Bytes   int           // received
	Segment int           // largest payload of a TCP segment without options
	Elapsed time.Duration // of the transfer
	NAPI    time.Duration // run time of the uplink's kernel thread: from the driver to the socket
	Server  time.Duration // run time of the receiving process: from the socket to user space
}

// CPU is the backend's time.
func (r Result) CPU() time.Duration { return r.NAPI + r.Server }

// Measure sends that many bytes by TCP from the client to the subject's backend.
func (b *Bulk) Measure(ctx context.Context, s Subject, bytes int) (Result, error) {
	backend := b.backends[s.Attach]
	at := s.address().String()
	server, err := process.Serve(ctx, backend.host, "iperf3", netip.AddrPortFrom(s.address(), port),
		"taskset", "--cpu-list", strconv.Itoa(backendCPU), "iperf3", "--server", "--bind", at)
	if err != nil {
		return Result{}, err
	}
	result, err := b.transfer(ctx, backend, server, at, bytes)
	return result, errors.Join(err, server.Stop())
}

func (b *Bulk) transfer(ctx context.Context, backend *backend, server *process.Process, to string, bytes int) (r Result, err error) {
	napi, err := backend.napi.CPUTime()
	if err != nil {
		return r, err
	}
	ran, err := server.CPUTime()
	if err != nil {
		return r, err
	}
	out, err := process.Run(ctx, b.client, "taskset", "--cpu-list", strconv.Itoa(sendingCPU),
		"iperf3", "--client", to, "--bytes", strconv.Itoa(bytes), "--window", window, "--json")
	if err != nil {
		return r, err
	}
	if r, err = parse(out); err != nil {
		return r, err
	}
	if r.NAPI, err = backend.napi.CPUTime(); err != nil {
		return r, err
	}
	if r.Server, err = server.CPUTime(); err != nil {
		return r, err
	}
	r.NAPI -= napi
	r.Server -= ran
	return r, nil
}

func parse(out string) (Result, error) {
	var report struct {
		Error string
		Start struct {
			MSS int `json:"tcp_mss_default"`
		}
		End struct {
			Received struct {
				Bytes   int
				Seconds float64
			} `json:"sum_received"`
		}
	}
	if err := json.Unmarshal([]byte(out), &report); err != nil {
		return Result{}, fmt.Errorf("read iperf3's result: %w", err)
	}
	if report.Error != "" || report.End.Received.Bytes == 0 {
		return Result{}, fmt.Errorf("iperf3 received %d bytes: %s", report.End.Received.Bytes, report.Error)
	}
	return Result{Bytes: report.End.Received.Bytes, Segment: report.Start.MSS,
		Elapsed: time.Duration(report.End.Received.Seconds * float64(time.Second))}, nil
}
