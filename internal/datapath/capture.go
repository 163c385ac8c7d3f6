package datapath

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/ringbuf"
	"golang.org/x/sys/unix"

	"weir.io/weir/internal/model"
)

// While a capture runs, links hold another program: the same director, with the same functions and
// maps, which also keeps packets for the reader. The plain program has nothing of it, and so costs
// no more. Each link's program is replaced in one step, so that every packet meets a program.

// ErrCapturing says that a capture runs already.
var ErrCapturing = errors.New("a capture runs already: there is one at a time")

// How a capture is read.
const (
	captureLease = 10 * time.Second      // without a read for so long, the program keeps nothing
	captureLook  = 20 * time.Millisecond // how often the ring is read
	captureTell  = time.Second           // how often the counts are sent
	captureBatch = 256                   // packets that are sent together, at most
)

// Capture is a capture that runs.
type Capture struct {
	d          *Datapath
	client     string // whose capture it is
	began      time.Time
	wanted     model.Capture
	collection *ebpf.Collection
	reader     *ringbuf.Reader
	interfaces []string
	names      captureNames
	stop       func() bool // ends following the context
	closing    sync.Once
	closed     atomic.Bool
}

// StartCapture captures packets for a client, which it names, until the context ends or Close is
// called. The error is ErrCapturing, ErrNothingForwarded, FieldErrors about the request, or the
// kernel's. It loads a program, which may take seconds.
func (d *Datapath) StartCapture(ctx context.Context, client string, wanted model.Capture) (*Capture, error) {
	wanted.SetDefaults()
	if err := wanted.Validate(); err != nil {
		return nil, err
	}
	if !d.capturing.TryLock() {
		return nil, ErrCapturing
	}
	c := &Capture{d: d, client: client, began: time.Now(), wanted: wanted}
	if err := c.start(); err != nil {
		d.capturing.Unlock()
		return nil, err
	}
	c.stop = context.AfterFunc(ctx, c.Close)
	return c, nil
}

func (c *Capture) start() (err error) {
	d := c.d
	d.mu.Lock()
	filter, err := c.filter()
	d.mu.Unlock()
	if err != nil {
		return err
	}
	if c.collection, err = loadCaptureProgram(d.options, filter, d.kernel.all); err != nil {
		return err
	}
	if c.reader, err = ringbuf.NewReader(c.collection.Maps[captureMapCaptured]); err != nil {
		c.collection.Close()
		return fmt.Errorf("open the capture's ring: %w", err)
	}
	if err = c.renew(); err == nil {
		err = c.attach()
	}
	if err != nil {
		return errors.Join(err, c.release())
	}
	d.log.Info("a capture begins", "snap", c.wanted.Snap, "rate", c.wanted.Rate, "duration", c.wanted.Duration)
	return nil
}

// filter is called with the datapath's lock.
func (c *Capture) filter() (none captureCaptureFilter, err error) {
	if !c.d.forwards() {
		return none, ErrNothingForwarded
	}
	c.interfaces = c.d.attachedNames()
	return c.d.captureFilter(&c.wanted)
}

// forwards says whether the whole datapath is in place: until then, an earlier process may have
// left another program.
func (d *Datapath) forwards() bool { return d.begun && d.kernel.tidied && !d.ends }

// attach puts the capturing program in place of the director's. It is pinned first: if this process
// is killed, the next one tells by the pin whose maps they are.
func (c *Capture) attach() error {
	d := c.d
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.forwards() {
		return ErrNothingForwarded
	}
	if err := pinClone(c.program(), d.kernel.capturePin()); err != nil {
		return err
	}
	d.captures = c.program()
	if err := d.switchTo(d.captures); err != nil {
		return errors.Join(err, c.detach())
	}
	d.capture = c
	d.taken.Begun++
	return nil
}

func (c *Capture) program() *ebpf.Program { return c.collection.Programs[captureProgCapture] }

// detach gives the interfaces the director's program again. It is called with the datapath's lock.
func (c *Capture) detach() error {
	d := c.d
	d.captures, d.capture = nil, nil
	if err := d.switchTo(d.kernel.program); err != nil {
		return err // the pin stays while some link has the program
	}
	return removePin(d.kernel.capturePin())
}

// switchTo replaces the program of all links.
func (d *Datapath) switchTo(program *ebpf.Program) error {
	var errs []error
	for name, a := range d.attached {
		// ENOLINK: the interface is gone, and an event about it is on its way.
		if err := a.link.Update(program); err != nil && !errors.Is(err, unix.ENOLINK) {
			errs = append(errs, fmt.Errorf("replace the program of %s: %w", name, err))
		}
	}
	return errors.Join(errs...)
}

// attaching is the program that interfaces are to have.
func (d *Datapath) attaching() *ebpf.Program {
	if d.captures != nil {
		return d.captures
	}
	return d.kernel.program
}

func (p *pins) capturePin() string { return filepath.Join(p.programsDir(), captureProgCapture) }

func removePin(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove pin: %w", err)
	}
	return nil
}

// renew postpones the moment from which the program keeps nothing.
func (c *Capture) renew() error {
	now, err := monotonic()
	if err != nil {
		return err
	}
	if err := c.collection.Maps[captureMapCaptureLease].Put(uint32(0), uint64(now+captureLease)); err != nil {
		return fmt.Errorf("renew the capture's lease: %w", err)
	}
	return nil
}

// monotonic is the kernel's clock CLOCK_MONOTONIC, which programs use.
func monotonic() (time.Duration, error) {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return 0, fmt.Errorf("read clock: %w", err)
	}
	return time.Duration(now.Nano()), nil
}

// Close ends the capture: interfaces have the director's program again when it returns.
func (c *Capture) Close() {
	c.closing.Do(func() {
		c.closed.Store(true)
		if c.stop != nil {
			c.stop()
		}
		c.d.mu.Lock()
		counts, err := c.counts()
		if err == nil {
			c.d.taken.Add(*counts)
		}
		err = errors.Join(err, c.detach())
		c.d.mu.Unlock()
		if err = errors.Join(err, c.release()); err != nil {
			c.d.log.Error("end a capture", "error", err)
		}
		c.d.log.Info("a capture has ended")
		c.d.capturing.Unlock()
	})
}

// endCapture ends the capture that runs, and prevents new ones.
func (d *Datapath) endCapture() {
	d.mu.Lock()
	d.ends = true
	c := d.capture
	d.mu.Unlock()
	if c != nil {
		c.Close()
	}
}

// captureStatus says what is captured. It is called with the datapath's lock, so that the capture
// does not end meanwhile.
func (d *Datapath) captureStatus() (model.CaptureStatus, error) {
	status := d.taken
	if c := d.capture; c != nil {
		counts, err := c.counts()
		if err != nil {
			return status, err
		}
		status.Add(*counts)
		status.Running = &model.CaptureRunning{Client: c.client, Since: c.began.UTC().Truncate(time.Second), Wanted: c.wanted}
	}
	return status, nil
}

func (c *Capture) release() error {
	err := c.reader.Close()
	c.collection.Close()
	return err
}

// Run gives packets to send, in the order in which they left, until the context or the capture
// ends, or send returns an error. The last message says why the capture ended.
func (c *Capture) Run(ctx context.Context, send func([]model.CaptureMessage) error) error {
	defer c.Close()
	r := &captureRun{Capture: c, send: send, began: time.Now(), told: time.Now()}
	began := r.began.UTC()
	if err := send([]model.CaptureMessage{{Began: &began, Interfaces: c.interfaces}}); err != nil {
		return err
	}
	for ended := ""; ended == ""; {
		batch, err := r.read()
		switch {
		case ctx.Err() != nil:
			return nil // there is no reader
		case c.closed.Load():
			ended = captureEndedByDirector
		case err != nil:
			return err
		case r.number == uint64(c.wanted.Packets):
			ended = "packets"
		case time.Since(r.began) > time.Duration(c.wanted.Duration):
			ended = "duration"
		}
		if err := r.tell(batch, ended); err != nil && ctx.Err() == nil {
			return err
		}
	}
	return nil
}

// captureEndedByDirector is the reason of a capture that ends because its director ends.
const captureEndedByDirector = "director"
