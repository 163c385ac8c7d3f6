package main

import (
	"context"
	"time"

	"weir.io/weir/internal/model"
)

const (
	// startPatience is how long a start waits for the group's etcd before it lets packets in
	// and tells routers by the last state that it knew.
	startPatience = 5 * time.Second
	// goingOnPatience is the same before it forwards by that state where an earlier process's
	// datapath does so already: nothing is gained by waiting, and until it forwards nobody
	// looks after its backends' health.
	goingOnPatience = time.Second
	// groupPatience is how long it waits for what the other directors remember. Those that
	// are dead or far away are not worth more: what they tell later counts, too.
	groupPatience = 3 * time.Second
)

// begin makes the first configuration what runs, with the sets that the group has, and waits
// for what the group remembers of flows. Packets come as soon as routers are told, and some
// earlier: what a router has kept while a host was gone comes at once when it is back. A
// director that had no program before lets them in when it knows whose they are: what it
// guesses wrong breaks, and it would tell the others.
func (d *director) begin(ctx context.Context, first model.Config) error {
	began, current := time.Now(), true
	if d.group != nil {
		patience := startPatience
		if d.goesOn {
			patience = goingOnPatience
		}
		var err error
		if current, err = d.keeper.Join(ctx, d.group, patience); err != nil {
			return err
		}
	}
	if err := d.keeper.SetFile(first); err != nil {
		return err
	}
	if err := d.shares.set(first.Director); err != nil {
		return err
	}
	patience := groupPatience
	if !current {
		// Who is who in the group is in its etcd, too: as long as that does not answer
		// nobody can tell anything.
		patience = startPatience - time.Since(began)
	}
	d.shares.await(ctx, patience)
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := d.kernel.Admit(); err != nil {
		return err
	}
	d.bfd.admit()
	return nil
}
