package main

import (
	"cmp"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"weir.io/weir/internal/api"
	"weir.io/weir/internal/bfd"
	"weir.io/weir/internal/daemon"
	"weir.io/weir/internal/datapath"
	"weir.io/weir/internal/logs"
	"weir.io/weir/internal/model"
	"weir.io/weir/internal/privilege"
)

// defaultBFDSocket is beside the director's socket.
var defaultBFDSocket = bfd.Socket(api.DefaultSocket)

type bfdOptions struct {
	bpffs, socket string
	log           logs.Flags
}

func newBFD() *cobra.Command {
	var o bfdOptions
	cmd := &cobra.Command{
		Use:   "bfd",
		Short: "Tell routers at once when this director's datapath is gone",
		Long: "bfd speaks Bidirectional Forwarding Detection (RFC 5880) for a director. weir run\n" +
			"starts it when its configuration asks for BFD; it goes on without weir run for the\n" +
			"restart time, and then ends. SIGTERM switches the sessions off: routers do not take\n" +
			"that for a failure.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			// The process goes on if the reader of its log is gone.
			signal.Ignore(syscall.SIGPIPE, syscall.SIGHUP)
			log, err := logger(&o.log, cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			return runBFD(cmd, &o, log)
		},
	}
	cmd.Flags().StringVar(&o.socket, "socket", defaultBFDSocket, "unix `socket` to answer on")
	addBPFFS(cmd, &o.bpffs)
	o.log.Add(cmd)
	cmd.AddCommand(newBFDStatus())
	return cmd
}

func runBFD(cmd *cobra.Command, o *bfdOptions, log *slog.Logger) error {
	if err := daemon.KeepCapabilities(privilege.BFD, log); err != nil {
		return err
	}
	listener, err := api.Listen(o.socket)
	if err != nil {
		return err
	}
	defer listener.Close()
	watch, err := datapath.NewWatch(daemon.PinDirectory(o.bpffs))
	if err != nil {
		return err
	}
	defer watch.Close()
	about := model.BFDStatus{Version: version, Socket: o.socket, Started: time.Now().Truncate(time.Second), Realtime: true}
	if err := bfd.Realtime(); err != nil {
		about.Realtime = false
		missing := "none" // then its control group has no real-time, for example
		if lacks := privilege.Missing(privilege.BFD, nil); len(lacks) > 0 {
			missing = fmt.Sprint(lacks)
		}
		log.Warn("BFD may be late when the host is busy", "error", err, "missing", missing)
	}
	speaker := bfd.NewSpeaker(watched{watch}, log)
	log.Info("BFD process runs", "socket", o.socket, "pid", os.Getpid())
	daemon.NotifyReady(log) // weir run looks for the socket
	bfd.NewServer(speaker, about, log).Run(cmd.Context(), listener)
	log.Info("BFD process ends")
	return nil
}

// watched is the datapath about which a BFD speaker asks.
type watched struct{ *datapath.Watch }

func (w watched) Interface(name string) bfd.Forwarding {
	switch up, attached := w.Watch.Interface(name); {
	case !up:
		return bfd.LinkDown
	case !attached:
		return bfd.Detached
	}
	return bfd.Forwards
}

func newBFDStatus() *cobra.Command {
	var out output
	var socket string
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the BFD sessions",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := out.check(); err != nil {
				return err
			}
			status, err := bfd.Query(cmd.Context(), socket)
			if err != nil {
				return err
			}
			return out.write(cmd.OutOrStdout(), status, func(t *table) { bfdTable(t, status) })
		},
	}
	out.add(cmd)
	cmd.Flags().StringVar(&socket, "socket", defaultBFDSocket, "unix `socket` of the BFD process")
	return cmd
}

func bfdTable(t *table, s model.BFDStatus) {
	t.row("version", s.Version)
	t.row("process", fmt.Sprintf("%d, since %s", s.PID, s.Started.Format(time.RFC3339)))
	t.row("ends", s.Deadline.Format(time.RFC3339)+", if weir run does not come back")
	t.row("real-time", s.Realtime)
	t.row("late", s.Late)
	t.line("")
	t.row("NEIGHBOR", "HOPS", "STATE", "SINCE", "DIAGNOSTIC", "NEIGHBOR-STATE", "NEIGHBOR-DIAGNOSTIC", "INTERVAL", "DETECTION", "SIGNED", "LOSSES", "PROBLEM")
	for _, n := range s.Sessions {
		t.row(n.Name(), hopsText(n.Multihop), n.State, n.Since.Format(time.RFC3339), n.Diagnostic, n.RemoteState, n.RemoteDiagnostic, n.Interval, n.Detection,
			cmp.Or(n.Authentication, "no"), n.Losses, cmp.Or(n.Problem, n.Refused))
	}
	t.line("")
	t.row("DISCARDED", "PACKETS")
	for _, d := range s.Discards {
		if d.Count > 0 {
			t.row(d.Name, d.Count)
		}
	}
}

func hopsText(multihop bool) string {
	if multihop {
		return "several"
	}
	return "one"
}
