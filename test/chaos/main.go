// Command chaos measures which connections break while directors and backends come, go, die and
// change at the same time. It runs thousands of TCP and QUIC connections and UDP flows, with every
// byte checked, through real weir processes in network namespaces.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"weir.io/weir/test/chaos/schedule"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := execute(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	if errors.Is(err, flag.ErrHelp) {
		os.Exit(2)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "chaos:", err)
		os.Exit(1)
	}
}

// shortest is the shortest run in which anything can happen.
const shortest = 10 * time.Second

// execute runs one command line.
func execute(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet("chaos", flag.ContinueOnError)
	flags.SetOutput(stderr)
	c := campaign{options: options{progress: stderr, patience: patience}, out: stdout}
	o := &c.options
	o.addFlags(flags)
	flags.Uint64Var(&o.Seed, "seed", 1, "which `schedule`: the same number is the same events")
	seeds := flags.String("seeds", "", "several schedules, one after the other: `1-10`, or 1,3,5-7")
	name := flags.String("mode", "gue", "one of "+modeNames()+"; or several, with commas")
	flags.BoolVar(&c.compare, "compare", false, "run every mode with the same schedules, and end with a table; what breaks is no failure")
	store := flags.String("store", "etcd", "where weir's directors have the services from: etcd, which they share, or file, one each")
	plan := flags.Bool("plan", false, "print the schedule and do nothing")
	flags.BoolVar(&c.json, "json", false, "print the result as JSON")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if c.compare && !given(flags, "mode") {
		*name = modeNames()
	}
	var err error
	if c.modes, err = findModes(*name); err != nil {
		return err
	}
	if c.seeds, err = parseSeeds(*seeds, o.Seed); err != nil {
		return err
	}
	if *store != "etcd" && *store != "file" {
		return fmt.Errorf("unknown store %q; there are etcd and file", *store)
	}
	// The schedule is the same for all modes, so that they can be compared.
	o.shared, o.Members = *store == "etcd", storeMembers
	if err := o.check(flags.Args()); err != nil {
		return err
	}
	if *plan {
		return printPlan(stdout, c.jobs()[0])
	}
	return c.run(ctx)
}

// addFlags defines the flags that are the same for every run.
func (o *options) addFlags(flags *flag.FlagSet) {
	flags.DurationVar(&o.Duration, "duration", 2*time.Minute, "how long events happen")
	flags.DurationVar(&o.retention, "retention", 10*time.Second, "the services' retention")
	flags.IntVar(&o.Directors, "directors", 4, "directors in the pool")
	flags.IntVar(&o.Backends, "backends", 12, "backends in the pool")
	flags.BoolVar(&o.Tiers, "tiers", false, "backends are in two tiers, of which the first fails by its health checks and comes back; its connections go on")
	flags.BoolVar(&o.OnlyBackends, "only-backends", false, "nothing happens to directors")
	flags.BoolVar(&o.OnlyDirectors, "only-directors", false, "nothing happens to backends")
	flags.BoolVar(&o.rehash, "rehash", false, "a connection's packets take the way through another director when its client has sent one again, as with IPv6 flow labels")
	flags.BoolVar(&o.steer, "steer", false, fmt.Sprintf("directors have NICs that steer flows, and something else changes %d of a NIC's rules per second", disturbances))
	flags.BoolVar(&o.alone, "alone", false, "directors do not tell each other what they remember of flows; those with a file never do")
	flags.IntVar(&o.connections, "connections", 2600, "TCP connections at the same time")
	flags.IntVar(&o.flows, "flows", 150, "UDP flows at the same time")
	flags.IntVar(&o.quics, "quic", 50, "QUIC connections at the same time, every second of which moves; none in modes without them")
	flags.IntVar(&o.weather.loss, "loss", 1, "`percent` of the packets that the router loses each way")
	flags.IntVar(&o.weather.synAcks, "lost-syn-acks", 5, "`percent` of the SYN-ACKs that it loses besides")
	flags.IntVar(&o.weather.late, "late", 1, "`percent` of the packets that others overtake")
	flags.IntVar(&o.syncookies, "syncookies", cookiesBySeed, "net.ipv4.tcp_syncookies of every host, 2 is always; "+
		fmt.Sprintf("%d: 2 for every tenth seed, 1 for others", cookiesBySeed))
}

// given reports whether a flag is on the command line.
func given(flags *flag.FlagSet, name string) (is bool) {
	flags.Visit(func(f *flag.Flag) { is = is || f.Name == name })
	return is
}

// check returns an error for options that cannot run.
func (o *options) check(rest []string) error {
	switch {
	case len(rest) > 0:
		return fmt.Errorf("unexpected argument %q", rest[0])
	case o.Duration < shortest:
		return fmt.Errorf("--duration %s is too short: at least %s", o.Duration, shortest)
	case o.OnlyBackends && o.OnlyDirectors:
		return errors.New("--only-backends and --only-directors leave nothing to change")
	case o.retention < time.Second:
		return fmt.Errorf("--retention %s is too short: at least 1s", o.retention)
	case o.Directors < 2 || o.Directors > mostDirectors:
		return fmt.Errorf("--directors %d: 2 to %d", o.Directors, mostDirectors)
	case o.Backends < 4 || o.Backends > mostBackends:
		return fmt.Errorf("--backends %d: 4 to %d", o.Backends, mostBackends)
	case o.connections < 1 || o.connections > 40000 || o.flows < 0 || o.flows > 10000 || o.quics < 0 || o.quics > 1000:
		return errors.New("--connections: 1 to 40000, --flows: 0 to 10000, --quic: 0 to 1000")
	case min(o.weather.loss, o.weather.synAcks, o.weather.late) < 0 || max(o.weather.loss, o.weather.synAcks, o.weather.late) > 50:
		return errors.New("--loss, --lost-syn-acks and --late: 0 to 50 percent")
	case o.syncookies < cookiesBySeed || o.syncookies > cookiesAlways:
		return errors.New("--syncookies: 0, 1 or 2, or -1 to leave it to the seed")
	}
	return nil
}

func printPlan(w io.Writer, o options) error {
	for _, e := range schedule.Make(o.Options) {
		mark := ""
		if e.Double {
			mark = " (double)"
		}
		if _, err := fmt.Fprintf(w, "%7.2fs %s%s\n", e.At.Seconds(), e, mark); err != nil {
			return err
		}
	}
	return nil
}
