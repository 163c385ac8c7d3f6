package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"weir.io/weir/internal/config"
	"weir.io/weir/internal/daemon"
	"weir.io/weir/internal/device"
	"weir.io/weir/internal/doctor"
	"weir.io/weir/internal/model"
	"weir.io/weir/internal/store"
	"weir.io/weir/internal/tune"
)

// errNotTuned says why tune's exit status is 1; the lines say the rest.
var errNotTuned = errors.New("not everything is set: see the lines with refused")

// tunedHost is where tune works.
var tunedHost = tune.This

func newTune() *cobra.Command {
	var out output
	var t tuning
	cmd := &cobra.Command{
		Use:   "tune",
		Short: "Have all CPUs share a director's packets: queues, interrupts, RSS, rings, frequency",
		Long: "tune sets what weir doctor finds amiss with how the host's CPUs share the packets of a director's\n" +
			"interfaces, and nothing else. --dry-run says what --apply would change, each with the command that\n" +
			"does the same; --undo restores what there was before the first --apply, where nobody has changed it\n" +
			"since. Where the number of queues or the rings change, most drivers begin anew, and lose packets\n" +
			"for up to seconds. Nothing stays over a reboot. The exit status is 1 if something is refused.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := out.check(); err != nil {
				return err
			}
			if err := t.check(); err != nil {
				return err
			}
			if err := t.read(cmd.Flags().Changed("config")); err != nil {
				return err
			}
			return t.run(cmd, &out)
		},
	}
	out.add(cmd)
	cmd.Flags().StringVarP(&t.file, "config", "c", defaultConfig, "configuration `file`, which names the interfaces and the directory of the state")
	cmd.Flags().StringArrayVar(&t.interfaces, "interface", nil, "`name` of an interface, in place of those in director.interfaces")
	cmd.Flags().StringVar(&t.state, "state", "", "`directory` with the record of what there was before, in place of the configuration's: --undo then needs no configuration")
	cmd.Flags().BoolVar(&t.dryRun, "dry-run", false, "only say what would be changed")
	cmd.Flags().BoolVar(&t.apply, "apply", false, "change it")
	cmd.Flags().BoolVar(&t.undo, "undo", false, "restore what there was before")
	cmd.Flags().BoolVar(&t.threaded, "threaded", false, "also have threads serve the queues (threaded NAPI)")
	return cmd
}

// tuning is one call of weir tune.
type tuning struct {
	file                          string
	interfaces                    []string
	dryRun, apply, undo, threaded bool

	state    string              // the directory of the state
	reserved map[string][]uint32 // queues for flows with rules
	fanOut   []uint32            // CPUs that get packets from others
}

func (t *tuning) check() error {
	chosen := 0
	for _, is := range []bool{t.dryRun, t.apply, t.undo} {
		if is {
			chosen++
		}
	}
	switch {
	case chosen != 1:
		return usagef("one of --dry-run, --apply and --undo says what to do")
	case t.undo && (len(t.interfaces) > 0 || t.threaded):
		return usagef("--undo restores all that was changed, and takes neither --interface nor --threaded")
	}
	return nil
}

// read takes the interfaces and the state's directory from the configuration. Where the interfaces are named,
// and for undo, there may be none.
func (t *tuning) read(named bool) error {
	if t.undo && t.state != "" {
		if _, err := os.Stat(t.state); err != nil {
			return fmt.Errorf("--state: %w", err)
		}
		return nil
	}
	c, err := config.Load(t.file)
	if !named && (t.undo || len(t.interfaces) > 0) && errors.Is(err, fs.ErrNotExist) {
		c, err = model.Config{}, nil
	}
	if err != nil && t.undo {
		return fmt.Errorf("%w; --state names the directory with the record without a configuration", err)
	}
	if err != nil {
		return err
	}
	if t.state == "" {
		t.state = daemon.StateDirectory(c.Director.Store)
	}
	if t.undo {
		return nil
	}
	t.reserved, t.fanOut = doctor.Reserved(&c.Director), doctor.FanOut(tunedHost(), &c.Director)
	if len(t.interfaces) == 0 {
		t.interfaces = c.Director.Interfaces
	}
	if len(t.interfaces) == 0 {
		return fmt.Errorf("%s has no director.interfaces: name one with --interface", t.file)
	}
	t.interfaces, err = device.NamesNow(t.interfaces)
	return err
}

func (t *tuning) run(cmd *cobra.Command, out *output) error {
	host := tunedHost()
	host.Done = cmd.Context().Done()
	signal.Ignore(unix.SIGHUP) // the terminal may be lost with a link whose driver begins anew
	options := tune.Options{Threaded: t.threaded, Reserved: t.reserved, FanOut: t.fanOut}
	record := tune.Store{Path: filepath.Join(t.state, tune.RecordName), Write: func(text []byte) error {
		return store.WriteFile(t.state, tune.RecordName, text)
	}}
	done := tuned{Changes: []tune.Change{}, Notes: []string{}}
	unlock, err := t.lock()
	if err != nil {
		return err
	}
	defer unlock()
	switch {
	case t.undo:
		var before bool
		var changes []tune.Change
		changes, before, err = host.Undo(record)
		done.Changes = append(done.Changes, changes...)
		switch {
		case before:
			done.note("this host has booted since weir tune has set something: nothing of it holds any more")
		case len(changes) == 0 && err == nil:
			done.note("nothing is recorded in " + record.Path)
		}
	case t.apply:
		var changes []tune.Change
		changes, err = host.Apply(t.interfaces, options, record)
		done.Changes = append(done.Changes, changes...)
		parts, _ := host.Survey(t.interfaces, options) // Apply has told what is missing
		done.byHand(parts)
	default:
		var parts []tune.Part
		parts, err = host.Survey(t.interfaces, options)
		done.Changes = append(done.Changes, tune.Plan(parts)...)
		for _, c := range tune.AmissIn(parts) {
			if c.Kind == tune.Queues {
				done.note(c.Interface + " has other queues then: what serves and fills them is looked at again")
			}
		}
		done.byHand(parts)
	}
	if len(done.Changes) == 0 && err == nil && !t.undo {
		done.note("nothing is to be changed")
	}
	err = errors.Join(err, out.write(cmd.OutOrStdout(), done, done.table))
	if slices.ContainsFunc(done.Changes, func(c tune.Change) bool { return c.Result == tune.Refused }) {
		err = errors.Join(err, errNotTuned)
	}
	return err
}

// lock keeps others from changing the host, and the record, meanwhile.
func (t *tuning) lock() (unlock func(), err error) {
	if _, missing := os.Stat(t.state); t.dryRun || t.undo && missing != nil {
		return func() {}, nil
	}
	return store.Lock(t.state, tune.RecordName, "weir tune")
}

// tuned is what tune prints.
type tuned struct {
	Changes []tune.Change `json:"changes"`
	Notes   []string      `json:"notes"`
}

func (d *tuned) note(text string) { d.Notes = append(d.Notes, text) }

// byHand notes what weir does not set.
func (d *tuned) byHand(parts []tune.Part) {
	for _, p := range parts {
		if p.Amiss && p.Fix != "" {
			d.note(fmt.Sprintf("by hand: %s: %s; fix: %s", p.Check(), p.Text, p.Fix))
		}
	}
}

func (d *tuned) table(t *table) {
	for _, c := range d.Changes {
		if c.Result == tune.Would {
			t.row(c.String(), c.Command)
		} else {
			t.line(printable(c.String()))
		}
	}
	for _, text := range d.Notes {
		t.line(printable(text))
	}
}
