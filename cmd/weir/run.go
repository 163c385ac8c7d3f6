package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"reflect"
	"strings"
	"sync"

	"github.com/spf13/cobra"

	"weir.io/weir/internal/api"
	"weir.io/weir/internal/config"
	"weir.io/weir/internal/datapath"
	"weir.io/weir/internal/desired"
	"weir.io/weir/internal/engine"
	"weir.io/weir/internal/history"
	"weir.io/weir/internal/metrics"
	"weir.io/weir/internal/model"
	"weir.io/weir/internal/store"
)

type runOptions struct {
	file, bpffs, socket string
	drain               drain
	log                 logFlags
}

func newRun() *cobra.Command {
	var o runOptions
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Run a director",
		Long: "run forwards what the file says. It follows the file: a change is applied at once,\n" +
			"or on SIGHUP; a bad file changes nothing and is logged. Forwarding goes on when the\n" +
			"process ends, and the next one takes it over; weir detach ends it. With --drain,\n" +
			"SIGTERM ends it too, after a while: a second SIGTERM ends only the process.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			log, err := o.log.logger(cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			if o.drain.wait < 0 {
				return fmt.Errorf("--drain %v is less than nothing", o.drain.wait)
			}
			return runDirector(cmd.Context(), &o, log)
		},
	}
	cmd.Flags().StringVarP(&o.file, "config", "c", defaultConfig, "configuration `file`")
	cmd.Flags().StringVar(&o.socket, "socket", api.DefaultSocket, "unix `socket` to answer on")
	cmd.Flags().DurationVar(&o.drain.wait, "drain", 0, "on SIGTERM forward for this `time`, then detach; 0: end at once, forwarding goes on")
	addBPFFS(cmd, &o.bpffs)
	o.log.add(cmd)
	return cmd
}

func runDirector(ctx context.Context, o *runOptions, log *slog.Logger) error {
	ctx, cancel := o.drain.context(ctx, log)
	defer cancel()
	first, changes, err := firstConfig(ctx, o.file)
	if err != nil {
		return err
	}
	if err := needInterfaces(first); err != nil {
		return fmt.Errorf("%s: %w", o.file, err)
	}
	if err := prepareHost(o.bpffs); err != nil {
		return err
	}
	// The socket before the kernel: a director that runs already must not find
	// its datapath changed by one that is then refused.
	listener, err := api.Listen(o.socket)
	if err != nil {
		return err
	}
	defer listener.Close()
	local, err := openStore(first.Director.Store, log)
	if err != nil {
		return err
	}
	defer local.Close()
	group, err := openGroup(first.Director.Store, log)
	if err != nil {
		return err
	}
	if group != nil {
		defer group.Close()
	}
	pin := pinDirectory(o.bpffs)
	kernel, err := datapath.Open(datapath.Options{
		Pin: pin, Mode: first.Director.XDP, Limits: first.Director.Limits, Log: log,
	})
	if err != nil {
		return err
	}
	d := &director{daemon: newDaemon(o.file, pin, log), kernel: kernel, first: first.Director, drain: &o.drain, local: local, group: group}
	err = errors.Join(d.run(ctx, first, changes, listener), kernel.Close())
	if err == nil {
		err = endForwarding(&o.drain, pin, log)
	}
	return err
}

// endForwarding detaches a director that has drained.
func endForwarding(drain *drain, pin string, log *slog.Logger) error {
	if !drain.over.Load() {
		log.Info("director ends; forwarding goes on until weir detach")
		return nil
	}
	err := datapath.Detach(pin)
	if errors.Is(err, datapath.ErrRunning) {
		log.Info("director ends; another one has taken over")
		return nil
	}
	if err == nil {
		log.Info("director ends, and forwarding with it")
	}
	return err
}

// director is a daemon whose configuration the engine applies.
type director struct {
	*daemon
	kernel *datapath.Datapath
	logs   func() map[model.ServiceID]model.LogStatus
	first  model.Director // what the kernel's maps were made for
	gauge  gauge
	drain  *drain
	local  *store.File
	group  *store.Etcd // nil: this director shares its sets with nobody
	keeper *desired.Keeper
	shares *sharing
}

// Status is the API's way to the kernel.
func (d *director) Status() (model.DatapathStatus, error) {
	logs := d.logs()
	status, err := d.kernel.Status()
	if err != nil {
		return status, err
	}
	maps.Copy(logs, d.logs()) // of services that came meanwhile; those that left had theirs before
	status.CPUs = d.gauge.cpus()
	status.Agents = d.keeper.Agents()
	status.Peers = d.shares.peers()
	left := d.keeper.Left()
	for _, cause := range history.Causes {
		status.Left = append(status.Left, model.Tallied{Name: string(cause), Count: left[cause]})
	}
	for i := range status.Services {
		s := &status.Services[i]
		s.Log = logs[model.ServiceID{Segment: s.Segment, VIP: s.VIP, Protocol: s.Protocol, Port: s.Port}]
	}
	return status, nil
}

// Set is the engine's way to the kernel.
func (d *director) Set(table model.Table) error {
	err := d.kernel.Set(table)
	d.noteSet(err)
	return err
}

// run applies the configurations until the context ends. Only the first one's
// error ends it earlier: later ones are tried again by the engine.
func (d *director) run(ctx context.Context, first model.Config, changes <-chan config.Change, listener net.Listener) error {
	ctx, cancel := context.WithCancel(ctx)
	engine := engine.New(d, d.log)
	d.keeper = desired.New(d.local, engine, d.log)
	if d.group != nil {
		d.keeper.Hear(d.group.FollowReports(ctx))
	}
	d.running, d.logs = engine.Desired, engine.LogStatus
	d.apply = func(c model.Config) error {
		if err := needInterfaces(c); err != nil {
			return err
		}
		d.warnOfRestart(c.Director)
		return errors.Join(d.keeper.SetFile(c), d.shares.set(c.Director))
	}
	var err error
	if d.shares, err = newSharing(ctx, d.kernel, d.group, d.log); err != nil {
		cancel()
		return err
	}
	defer d.shares.close()
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	running.Go(func() { engine.Run(ctx) })
	if err := d.begin(ctx, first); err != nil {
		if ctx.Err() != nil {
			return nil // told to end before it began
		}
		return err
	}
	running.Go(func() { d.keeper.Run(ctx) })
	d.drain.runs.Store(true)
	d.log.Info("director runs", "config", d.info.File, "services", len(first.Services), "pin", d.info.Pin)
	gauge, end := startGauge(ctx, d.log)
	defer end()
	d.gauge = gauge
	server := api.NewServer(d, d, d.log)
	server.Handle("/metrics", metrics.Handler(d))
	server.HandleSets(&sets{d.keeper})
	defer d.serve(ctx, server, listener)()
	d.follow(ctx, changes)
	cancel()
	return nil
}

// begin makes the first configuration what runs, with the sets that the group has.
func (d *director) begin(ctx context.Context, first model.Config) error {
	if d.group != nil {
		if err := d.keeper.Join(ctx, d.group); err != nil {
			return err
		}
	}
	if err := d.keeper.SetFile(first); err != nil {
		return err
	}
	if err := d.shares.set(first.Director); err != nil {
		return err
	}
	d.shares.await(ctx)
	return nil
}

// Info also says which state of the group's is followed, and why it is not what runs.
func (d *director) Info() api.Info {
	info := d.daemon.Info()
	info.Revision = d.keeper.Revision()
	if err := d.keeper.Problem(); err != nil {
		info.Refused = strings.TrimPrefix(info.Refused+"\n"+err.Error(), "\n")
	}
	return info
}

// needInterfaces refuses what would take the program off every interface: an
// agent's file, or a key lost in an edit.
func needInterfaces(c model.Config) error {
	if len(c.Director.Interfaces) == 0 {
		return errors.New("director.interfaces: is empty; name those that clients' packets come in by")
	}
	return nil
}

// warnOfRestart says which changes wait for the next start.
func (d *director) warnOfRestart(now model.Director) {
	for _, part := range []struct {
		key     string
		changed bool
	}{
		{"director.limits", now.Limits != d.first.Limits},
		{"director.xdp", now.XDP != d.first.XDP},
		{"director.store", !reflect.DeepEqual(now.Store, d.first.Store)},
	} {
		if part.changed {
			d.log.Warn("change takes effect when weir run starts again", "key", part.key)
		}
	}
}
