package traffic

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"weir.io/weir/lab/netlab"
)

// Mirror sends every frame on unchanged: no forwarder can be faster.
type Mirror struct {
	attached link.Link
	closers  []func() error
}

// NewRedirect sends frames that arrive at one port of a host out of another.
func NewRedirect(in, out *netlab.Port) (*Mirror, error) {
	var kernel struct {
		Program *ebpf.Program `ebpf:"redirect"`
		Ports   *ebpf.Map     `ebpf:"ports"`
	}
	if err := load("redirect", nil, nil, &kernel); err != nil {
		return nil, err
	}
	m := &Mirror{closers: []func() error{kernel.Program.Close, kernel.Ports.Close}}
	err := in.Host.Do(func() error { return kernel.Ports.Put(uint32(0), uint32(out.Index)) })
	if err != nil {
		return nil, errors.Join(fmt.Errorf("redirect to %s of %s: %w", out.Name, out.Host.Name, err), m.Close())
	}
	return m, m.attach(in, kernel.Program)
}

// NewReflect sends frames that arrive at a port back out of it.
func NewReflect(port *netlab.Port) (*Mirror, error) {
	var kernel struct {
		Program *ebpf.Program `ebpf:"reflect"`
	}
	if err := load("reflect", nil, nil, &kernel); err != nil {
		return nil, err
	}
	m := &Mirror{closers: []func() error{kernel.Program.Close}}
	return m, m.attach(port, kernel.Program)
}

func (m *Mirror) attach(port *netlab.Port, program *ebpf.Program) error {
	err := port.Host.Do(func() (err error) {
		m.attached, err = link.AttachXDP(link.XDPOptions{Program: program, Interface: port.Index, Flags: link.XDPDriverMode})
		return err
	})
	if err != nil {
		return errors.Join(fmt.Errorf("attach to %s of %s: %w", port.Name, port.Host.Name, err), m.Close())
	}
	return nil
}

// Close stops it.
func (m *Mirror) Close() error {
	var errs []error
	if m.attached != nil {
		errs = append(errs, m.attached.Close())
	}
	for _, c := range m.closers {
		errs = append(errs, c())
	}
	return errors.Join(errs...)
}
