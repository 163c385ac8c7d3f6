package observe

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/ringbuf"

	"weir.io/weir/internal/datapath/flows"
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

// CaptureDeps is what captures need of a director. The functions are called with the lock held.
type CaptureDeps struct {
	Log     *slog.Logger
	Lock    sync.Locker // of the director's state
	Size    func(*ebpf.CollectionSpec)
	Live    map[string]*ebpf.Map // the director's
	Reasons []string             // by number

	Snapshot   func() (*Snapshot, error)              // the error is ErrNothingForwarded
	Interfaces func() []string                        // that have the director's program
	Index      func(name string) (index int, is bool) // of one of them
	// Switch gives the interfaces a program in place of the director's; nil: the director's again.
	Switch func(*ebpf.Program) error
}

// Captures captures packets for one client at a time.
type Captures struct {
	CaptureDeps

	running sync.Mutex          // is held while there is a capture, and taken before Lock
	current *Capture            // nil: there is none
	taken   model.CaptureStatus // by captures that have ended
	ends    bool                // there will be no more captures
}

// NewCaptures captures nothing yet.
func NewCaptures(deps CaptureDeps) *Captures { return &Captures{CaptureDeps: deps} }

// Capture is a capture that runs.
type Capture struct {
	all        *Captures
	client     string // whose capture it is
	began      time.Time
	wanted     model.Capture
	collection *ebpf.Collection
	reader     *ringbuf.Reader
	interfaces []string
	names      captureNames
	record     ringbuf.Record
	number     uint64      // of the packet that was read last
	stop       func() bool // ends following the context
	closing    sync.Once
	closed     atomic.Bool
}

// Start captures packets for a client, which it names, until the context ends or Close is called. The
// error is ErrCapturing, ErrNothingForwarded, FieldErrors about the request, or the kernel's. It loads
// a program, which may take seconds.
func (a *Captures) Start(ctx context.Context, client string, wanted model.Capture) (*Capture, error) {
	wanted.SetDefaults()
	if err := wanted.Validate(); err != nil {
		return nil, err
	}
	if !a.running.TryLock() {
		return nil, ErrCapturing
	}
	c := &Capture{all: a, client: client, began: time.Now(), wanted: wanted}
	if err := c.start(); err != nil {
		a.running.Unlock()
		return nil, err
	}
	c.stop = context.AfterFunc(ctx, c.Close)
	return c, nil
}

func (c *Capture) start() error {
	filter, err := c.filter()
	if err != nil {
		return err
	}
	if c.collection, err = loadCaptureProgram(c.all.Size, filter, c.all.Live); err != nil {
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
	c.all.Log.Info("a capture begins", "snap", c.wanted.Snap, "rate", c.wanted.Rate, "duration", c.wanted.Duration)
	return nil
}

func (c *Capture) filter() (none captureCaptureFilter, err error) {
	c.all.Lock.Lock()
	defer c.all.Lock.Unlock()
	w, err := c.all.snapshot()
	if err != nil {
		return none, err
	}
	c.interfaces = c.all.Interfaces()
	return c.all.filterOf(&c.wanted, w)
}

// snapshot is the director's state, as long as it forwards.
func (a *Captures) snapshot() (*Snapshot, error) {
	if a.ends {
		return nil, ErrNothingForwarded
	}
	return a.Snapshot()
}

// attach puts the capturing program in place of the director's.
func (c *Capture) attach() error {
	a := c.all
	a.Lock.Lock()
	defer a.Lock.Unlock()
	if _, err := a.snapshot(); err != nil {
		return err
	}
	if err := a.Switch(c.Program()); err != nil {
		return errors.Join(err, a.Switch(nil))
	}
	a.current = c
	a.taken.Begun++
	return nil
}

// Program is the program that captures.
func (c *Capture) Program() *ebpf.Program { return c.collection.Programs[captureProgCapture] }

// renew postpones the moment from which the program keeps nothing.
func (c *Capture) renew() error {
	now, err := flows.Monotonic()
	if err != nil {
		return err
	}
	if err := c.collection.Maps[captureMapCaptureLease].Put(uint32(0), uint64(now+captureLease)); err != nil {
		return fmt.Errorf("renew the capture's lease: %w", err)
	}
	return nil
}

// Close ends the capture: interfaces have the director's program again when it returns.
func (c *Capture) Close() {
	c.closing.Do(func() {
		c.closed.Store(true)
		if c.stop != nil {
			c.stop()
		}
		a := c.all
		a.Lock.Lock()
		counts, err := c.Counts()
		if err == nil {
			a.taken.Add(*counts)
		}
		a.current = nil
		err = errors.Join(err, a.Switch(nil))
		a.Lock.Unlock()
		if err = errors.Join(err, c.release()); err != nil {
			a.Log.Error("end a capture", "error", err)
		}
		a.Log.Info("a capture has ended")
		a.running.Unlock()
	})
}

// End ends the capture that runs, and prevents new ones.
func (a *Captures) End() {
	a.Lock.Lock()
	a.ends = true
	c := a.current
	a.Lock.Unlock()
	if c != nil {
		c.Close()
	}
}

// Status says what is captured. It is called with the lock held, so that the capture does not end
// meanwhile.
func (a *Captures) Status() (model.CaptureStatus, error) {
	status := a.taken
	if c := a.current; c != nil {
		counts, err := c.Counts()
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
	r := &captureRun{Capture: c, send: send, told: time.Now()}
	began := time.Now()
	if err := send([]model.CaptureMessage{{Began: new(began.UTC()), Interfaces: c.interfaces}}); err != nil {
		return err
	}
	for ended := ""; ended == ""; {
		batch, err := c.Read()
		switch {
		case ctx.Err() != nil:
			return nil // there is no reader
		case c.closed.Load():
			ended = EndedByDirector
		case err != nil:
			return err
		case c.number == uint64(c.wanted.Packets):
			ended = "packets"
		case time.Since(began) > time.Duration(c.wanted.Duration):
			ended = "duration"
		}
		if err := r.deliver(batch, ended); err != nil && ctx.Err() == nil {
			return err
		}
	}
	return nil
}

// EndedByDirector is the reason of a capture that ends because its director ends.
const EndedByDirector = "director"

// captureRun is a capture while its packets are sent.
type captureRun struct {
	*Capture
	send func([]model.CaptureMessage) error
	told time.Time // when the counts were sent last
}

// deliver sends the packets that were read, the counts from time to time, and why the capture ends.
func (r *captureRun) deliver(packets []model.CapturedPacket, ended string) error {
	messages := make([]model.CaptureMessage, 0, len(packets)+1)
	for i := range packets {
		messages = append(messages, model.CaptureMessage{Packet: &packets[i]})
	}
	if ended != "" || time.Since(r.told) > captureTell {
		counts, err := r.Counts()
		if err != nil && !r.closed.Load() {
			return err
		}
		messages = append(messages, model.CaptureMessage{Counts: counts, Ended: ended})
		r.told = time.Now()
	}
	if len(messages) == 0 {
		return nil
	}
	if err := r.send(messages); err != nil {
		return err
	}
	if ended != "" || r.closed.Load() {
		return nil
	}
	return r.renew()
}
