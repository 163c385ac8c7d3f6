package desired

import (
	"time"

	"weir.io/weir/internal/model"
)

// batch is the changes of one owner's set that come within a short time: only their result is applied,
// as one generation, and all callers get its result.
type batch struct {
	puts   []*proposal
	done   chan struct{}
	change model.SetChange
	err    error
}

// coalesce lets an owner's change wait for others, which join it in the order in which they come.
func (k *Keeper) coalesce(owner string, p *proposal) *batch {
	k.mu.Lock()
	defer k.mu.Unlock()
	b := k.waiting[owner]
	if b == nil {
		b = &batch{done: make(chan struct{})}
		k.waiting[owner] = b
		time.AfterFunc(time.Duration(k.file.Coalesce), func() { k.flush(owner, b) })
	}
	b.puts = append(b.puts, p)
	return b
}

func (k *Keeper) flush(owner string, b *batch) {
	k.mu.Lock()
	delete(k.waiting, owner) // from now on no change joins it
	k.mu.Unlock()
	b.change, b.err = k.put(owner, b.puts)
	close(b.done)
}
