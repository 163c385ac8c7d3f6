package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"weir.io/weir/internal/api"
	"weir.io/weir/internal/logs"
	"weir.io/weir/internal/model"
)

// leastEvery is how often top may ask: a director of many services takes a while to answer.
const leastEvery = 100 * time.Millisecond

type topOptions struct {
	conn     connection
	out      output
	every    time.Duration
	once     bool
	backends bool
	order    string
	segment  segmentFlag
}

func newTop() *cobra.Command {
	var o topOptions
	cmd := &cobra.Command{
		Use:   "top [SERVICE...]",
		Short: "Watch what services and backends get, per second",
		Long: "top asks a director again and again, and shows what each service got in a second in\n" +
			"between: the busiest first. It ends with Ctrl-C. Where the output is no terminal, and\n" +
			"with --once, it prints one table, after one interval.",
		Example:           "  weir top\n  weir top web --backends\n  weir top --once --every 10s -o json",
		ValidArgsFunction: o.conn.completeServices,
		RunE: func(cmd *cobra.Command, names []string) error {
			if err := o.check(); err != nil {
				return err
			}
			client, err := o.conn.client()
			if err != nil {
				return err
			}
			return o.watch(cmd.Context(), client, cmd.OutOrStdout(), names)
		},
	}
	o.segment.add(cmd, "services in")
	cmd.Flags().DurationVar(&o.every, "every", time.Second, "ask again after so long")
	cmd.Flags().BoolVar(&o.once, "once", false, "print one table, and end")
	cmd.Flags().BoolVar(&o.backends, "backends", false, "show backends, too")
	cmd.Flags().StringVar(&o.order, "sort", "packets", "what is most comes first: connections, packets, bytes, dropped; or name")
	_ = cmd.RegisterFlagCompletionFunc("sort", cobra.FixedCompletions([]string{"connections", "packets", "bytes", "dropped", "name"}, cobra.ShellCompDirectiveNoFileComp))
	o.out.add(cmd)
	o.conn.add(cmd)
	return cmd
}

func (o *topOptions) check() error {
	if err := o.out.check(); err != nil {
		return err
	}
	if _, known := orders[o.order]; !known {
		return usagef("--sort %q is none of bytes, connections, dropped, name, packets", o.order)
	}
	if o.every < leastEvery {
		return usagef("--every %v is too short: at least %v", o.every, leastEvery)
	}
	return nil
}

// Sequences for a terminal like a VT100: a separate screen without a cursor; back to the main
// screen; back to the top; and erase the rest of the line, and of the screen.
const (
	ownScreen  = "\x1b[?1049h\x1b[?25l"
	mainScreen = "\x1b[?25h\x1b[?1049l"
	fromTop    = "\x1b[H"
	endOfLine  = "\x1b[K\n"
	eraseBelow = "\x1b[J"
)

func (o *topOptions) watch(ctx context.Context, client *api.Client, w io.Writer, names []string) error {
	live := !o.once && o.out.format == "table" && logs.IsTerminal(w)
	before, err := readTop(ctx, client, names, o.segment.in)
	if err != nil {
		return err
	}
	if len(before.services) == 0 {
		if err := o.segment.known(ctx, client); err != nil {
			return err
		}
	}
	if live {
		fmt.Fprint(w, ownScreen)
		defer fmt.Fprint(w, mainScreen)
	}
	ticks := time.NewTicker(o.every)
	defer ticks.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil // the usual end of top
		case <-ticks.C:
		}
		now, err := readTop(ctx, client, names, o.segment.in)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		rates := now.since(before)
		rates.order(o.order)
		if !live {
			return o.out.write(w, rates, func(t *table) { rates.table(t, o.backends) })
		}
		if err := o.draw(w, rates); err != nil {
			return err
		}
		before = now
	}
}

// draw writes as much as the terminal has lines and columns for.
func (o *topOptions) draw(w io.Writer, rates topRates) error {
	var text bytes.Buffer
	if err := o.out.write(&text, nil, func(t *table) { rates.table(t, o.backends) }); err != nil {
		return err
	}
	var screen strings.Builder
	screen.WriteString(fromTop)
	rows, columns := sizeOf(w)
	for n, line := range strings.Split(strings.TrimRight(text.String(), "\n"), "\n") {
		if n == rows-1 {
			break
		}
		if runes := []rune(line); len(runes) > columns {
			line = string(runes[:columns])
		}
		screen.WriteString(line + endOfLine)
	}
	screen.WriteString(eraseBelow)
	_, err := io.WriteString(w, screen.String())
	return err
}

// sizeOf is the size of a terminal; a VT100's if the terminal does not tell it.
func sizeOf(w io.Writer) (rows, columns int) {
	if file, is := w.(*os.File); is {
		if size, err := unix.IoctlGetWinsize(int(file.Fd()), unix.TIOCGWINSZ); err == nil && size.Row > 0 && size.Col > 0 {
			return int(size.Row), int(size.Col)
		}
	}
	return 24, 80
}

// topReading is the director's counters at one moment.
type topReading struct {
	at       time.Time
	cpus     []model.CPUStatus
	services []model.ServiceStatus
}

// readTop asks for the services of these names in a segment; all of them without any, and in all with nil.
func readTop(ctx context.Context, client *api.Client, names []string, in *model.Segment) (topReading, error) {
	status, err := client.Status(ctx)
	if err != nil {
		return topReading{}, err
	}
	services, err := client.ServicesIn(ctx, in)
	if err != nil {
		return topReading{}, err
	}
	services, err = named(services, names)
	return topReading{at: time.Now(), cpus: status.CPUs, services: services}, err
}
