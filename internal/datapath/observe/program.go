package observe

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/cilium/ebpf"

	"weir.io/weir/internal/bpfload"
	"weir.io/weir/internal/datapath/abi"
	"weir.io/weir/internal/model"
)

// captureSpec is the director's capturing program, with maps as large as the director's.
func captureSpec(size func(*ebpf.CollectionSpec), filter captureCaptureFilter) (*ebpf.CollectionSpec, error) {
	spec, err := loadCapture()
	if err != nil {
		return nil, fmt.Errorf("read capture program: %w", err)
	}
	spec.Variables = map[string]*ebpf.VariableSpec{captureVarCaptureWant: spec.Variables[captureVarCaptureWant]}
	if err := spec.Variables[captureVarCaptureWant].Set(filter); err != nil {
		return nil, fmt.Errorf("write the filter into the capture program: %w", err)
	}
	spec.Programs = map[string]*ebpf.ProgramSpec{captureProgCapture: spec.Programs[captureProgCapture]}
	size(spec)
	return spec, nil
}

// captureOwn are the capture's own maps; all others are the director's.
var captureOwn = []string{captureMapCaptured, captureMapCaptureScratch, captureMapCaptureCounted, captureMapCaptureBudget, captureMapCaptureLease, bpfload.Constants}

// loadCaptureProgram loads the program beside the one that forwards, with the same maps.
func loadCaptureProgram(size func(*ebpf.CollectionSpec), filter captureCaptureFilter, live map[string]*ebpf.Map) (*ebpf.Collection, error) {
	spec, err := captureSpec(size, filter)
	if err != nil {
		return nil, err
	}
	shared := map[string]*ebpf.Map{}
	for name := range spec.Maps {
		switch m := live[name]; {
		case m != nil:
			shared[name] = m
		case strings.HasPrefix(name, "vtep_"), name == abi.VTEP: // empty: the director is no VTEP
		case !slices.Contains(captureOwn, name):
			return nil, fmt.Errorf("map %s: the director has none", name)
		}
	}
	collection, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{MapReplacements: shared})
	if err != nil {
		return nil, bpfload.Error(err)
	}
	return collection, nil
}

// quiet are the reasons that a capture leaves out unless they are named: those of packets of no
// service, among which are the packets of the capturing client's own session.
var quiet = []string{"pass_not_ip", "pass_no_service"}

// filterOf makes the program's filter from a valid request. Errors are FieldErrors.
func (a *Captures) filterOf(c *model.Capture, w *Snapshot) (f captureCaptureFilter, err error) {
	f = captureCaptureFilter{Protocol: model.CaptureProtocols[c.Protocol], Sample: uint32(c.Sample), Snap: uint32(c.Snap),
		Rate: uint32(max(1, uint64(c.Rate)<<30/1e9))}
	var errs model.FieldErrors
	refuse := func(field, format string, values ...any) {
		errs = append(errs, model.FieldError{Path: field, Problem: fmt.Sprintf(format, values...)})
	}
	for number, reason := range a.Reasons {
		wanted := !slices.Contains(quiet, reason)
		if c.Drops {
			wanted = strings.HasPrefix(reason, "drop_")
		} else if len(c.Reasons) > 0 {
			wanted = slices.Contains(c.Reasons, reason)
		}
		if wanted {
			f.Reasons |= 1 << number
		}
	}
	for _, reason := range c.Reasons {
		if !slices.Contains(a.Reasons, reason) {
			refuse("reasons", "there is no reason %q; there are %s", model.Shown(reason), strings.Join(a.Reasons, ", "))
		}
	}
	for _, end := range []struct {
		text string
		to   *captureCaptureEndpoint
	}{{c.VIP, &f.Vip}, {c.Client, &f.Client}} {
		if parsed, err := model.ParseCaptureEnd(end.text); err == nil { // otherwise it is empty
			*end.to = captureEndpoint(parsed)
		}
	}
	if c.Segment != nil {
		f.Segment, f.InSegment = c.Segment.Key(), 1
		if c.Segment.IsOverlay() && w.Wire != nil {
			f.Network = w.Wire(*c.Segment).Key()
		}
	}
	if f.Service, err = w.serviceNamed(c.Service); err != nil {
		refuse("service", "%v", err)
	}
	if f.Backend, err = w.backendNamed(c.Backend, c.Service); err != nil {
		refuse("backend", "%v", err)
	}
	if c.Interface != "" {
		index, is := a.Index(c.Interface)
		if f.Ingress = uint32(index); !is {
			refuse("interface", "%q is none of the director's: %s", c.Interface, strings.Join(a.Interfaces(), ", "))
		}
	}
	if errs != nil {
		return f, errs
	}
	return f, nil
}

// captureEndpoint is one end of packets, in the program's format.
func captureEndpoint(end model.CaptureEnd) (e captureCaptureEndpoint) {
	address := end.Prefix.Addr()
	e.Address.Bytes = abi.AddressBytes(address).Bytes
	for i := range end.Prefix.Bits() {
		e.Mask.Bytes[i/8] |= 0x80 >> (i % 8)
	}
	e.Port, e.Given = abi.BigEndian16(end.Port), 1
	if address.Is6() {
		e.Ipv6 = 1
	}
	return e
}

// serviceNamed is a service's index plus 1; 0: any.
func (w *Snapshot) serviceNamed(name string) (uint32, error) {
	if name == "" {
		return 0, nil
	}
	for index, s := range w.Services {
		if s.Name == name {
			return index + 1, nil
		}
	}
	return 0, fmt.Errorf("there is no service %q", name)
}

// backendNamed finds a backend by its name or address, within a service if one is named.
func (w *Snapshot) backendNamed(text, service string) (none captureCaptureEndpoint, err error) {
	if text == "" {
		return none, nil
	}
	end, notAddress := model.ParseCaptureEnd(text)
	if notAddress == nil && !end.Prefix.IsSingleIP() {
		return none, errors.New("is a name or an address, not a prefix")
	}
	found := map[netip.Addr]bool{}
	for _, s := range w.Services {
		if service != "" && s.Name != service {
			continue
		}
		for i := range s.Backends {
			b := &s.Backends[i]
			if notAddress != nil && b.Name == text ||
				notAddress == nil && b.Address == end.Prefix.Addr() && (end.Port == 0 || b.Port == end.Port) {
				found[b.TunnelEnd()] = true
			}
		}
	}
	switch {
	case len(found) == 0:
		return none, fmt.Errorf("there is no backend %s", text)
	case len(found) > 1:
		return none, fmt.Errorf("backends of several addresses have the name %q: say the service or the address", text)
	case notAddress != nil:
		for a := range found {
			end.Prefix = netip.PrefixFrom(a, a.BitLen())
		}
	}
	return captureEndpoint(end), nil
}
