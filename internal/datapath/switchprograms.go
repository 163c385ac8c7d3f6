package datapath

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
)

// A link's program is replaced in one step, so that every packet meets a program. If one of several
// links refuses its new program, all get their old one back: the version before goes on as a whole.

// replaced is a link that has got another program.
type replaced struct {
	pin    string
	before ebpf.ProgramID
}

// switchPrograms attaches the programs, whose maps are filled, to the interfaces in
// place of those that an earlier process attached.
func (d *Datapath) switchPrograms(interfaces []string, links []netlink.Link, replies bool) error {
	d.noteFlowLayout()
	if err := d.kernel.publish(); err != nil {
		return err
	}
	d.replaced = nil
	err := d.attach(interfaces, links)
	if err == nil {
		var translating []netlink.Link
		for _, link := range links {
			if link != nil && replies {
				translating = append(translating, link)
			}
		}
		if err = d.attachUndo(translating); err == nil {
			err = d.attachReplies(replies, !d.kernel.inUse)
		}
	}
	if err != nil {
		return errors.Join(err, d.switchBack())
	}
	d.kernel.inUse = true
	return nil
}

// replaceProgram gives a pinned link a program.
func (d *Datapath) replaceProgram(l link.Link, pin string, program *ebpf.Program) error {
	info, err := l.Info()
	if err != nil {
		return fmt.Errorf("look at link: %w", err)
	}
	if err := l.Update(program); err != nil {
		return fmt.Errorf("replace program: %w", err)
	}
	d.replaced = append(d.replaced, replaced{pin, info.Program})
	return nil
}

// switchBack gives links their old programs again after a Set that failed.
func (d *Datapath) switchBack() error {
	var errs []error
	for _, r := range slices.Backward(d.replaced) {
		if err := d.switchLinkBack(r); err != nil {
			// This link goes on with the new program, whose maps must stay.
			d.kernel.inUse = true
			errs = append(errs, fmt.Errorf("give %s its program back: %w", filepath.Base(r.pin), err))
		}
	}
	d.replaced = nil
	return errors.Join(errs...)
}

func (d *Datapath) switchLinkBack(r replaced) error {
	program, err := d.kernel.openProgram(r.before)
	if err != nil {
		return err
	}
	defer program.Close()
	l, err := link.LoadPinnedLink(r.pin, nil)
	if err != nil {
		return fmt.Errorf("open pinned link: %w", err)
	}
	defer l.Close()
	if err := l.Update(program); err != nil {
		return fmt.Errorf("replace program: %w", err)
	}
	// The next Set has to replace it again.
	for name, a := range d.attached {
		if d.kernel.linkPin(name) == r.pin {
			a.close()
			delete(d.attached, name)
		}
	}
	return nil
}
