package desired

import (
	"time"

	"weir.io/weir/internal/model"
	"weir.io/weir/internal/store"
)

// SetFile makes the director forward by a valid version of its file, beside the sets. The first
// version is applied at once, later ones after the time that they give as coalesce: if several come
// meanwhile, the last is applied.
func (k *Keeper) SetFile(c model.Config) error {
	k.mu.Lock()
	first := !k.begun
	k.mu.Unlock()
	if first {
		_, err := k.setFile(c)
		return err
	}
	b := k.coalesce(store.OwnerFile, time.Duration(c.Coalesce), func(b *batch) {
		b.do = func() (model.SetChange, error) { return k.setFile(c) }
	})
	<-b.done
	return b.err
}

// batch is the changes of one owner that come within a short time: only their result is applied, as
// one generation, and all callers get its result.
type batch struct {
	puts   []*proposal // of a set
	do     func() (model.SetChange, error)
	done   chan struct{}
	change model.SetChange
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
