// Package numbers gives each host of a lab its own TCP sequence numbers. All hosts of a lab share
// one kernel, which makes all SYN cookies with one secret. A cookie may be accepted in any segment
// of a connection, if both ends have sent about the same amount. So each host would accept
// connections of the others, as no two hosts of a real network do.
package numbers

import (
	"context"
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"weir.io/weir/lab/netlab"
)

// Apart makes others see the sequence numbers of the host at a cable larger by an offset, until the
// context ends. The port is the cable's other end.
func Apart(ctx context.Context, port *netlab.Port, offset uint32) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("tell sequence numbers apart at %s of %s: %w", port.Name, port.Host.Name, err)
		}
	}()
	spec, err := loadNumbers()
	if err != nil {
		return err
	}
	if err := spec.Variables["offset"].Set(offset); err != nil {
		return err
	}
	var programs numbersPrograms
	if err := spec.LoadAndAssign(&programs, nil); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, programs.Close()) }()
	return port.Host.Do(func() error {
		return errors.Join(attach(ctx, port, programs.FromHost, ebpf.AttachTCXIngress),
			attach(ctx, port, programs.ToHost, ebpf.AttachTCXEgress))
	})
}

func attach(ctx context.Context, port *netlab.Port, program *ebpf.Program, where ebpf.AttachType) error {
	l, err := link.AttachTCX(link.TCXOptions{Interface: port.Index, Program: program, Attach: where})
	if err == nil {
		context.AfterFunc(ctx, func() { _ = l.Close() })
	}
	return err
}
