package desired

import "time"

// batch is the changes of one owner that come within a short time: only their result is applied, as
// one generation, and all callers get its result.
type batch struct {
	puts   []*proposal // of a set
	do     func() (Change, error)
	done   chan struct{}
	change Change
	err    error
}

// coalesce lets an owner's change wait for others, as long as the first of them says. Each change
// joins the batch in its turn, and says what to do for all that have joined.
func (k *Keeper) coalesce(owner string, wait time.Duration, join func(*batch)) *batch {
	k.mu.Lock()
	defer k.mu.Unlock()
	b := k.waiting[owner]
	if b == nil {
		b = &batch{done: make(chan struct{})}
		k.waiting[owner] = b
		time.AfterFunc(wait, func() { k.flush(owner, b) })
	}
	join(b)
	return b
}

func (k *Keeper) flush(owner string, b *batch) {
	k.mu.Lock()
	delete(k.waiting, owner) // from now on no change joins it
	do := b.do
	k.mu.Unlock()
	b.change, b.err = do()
	close(b.done)
}
