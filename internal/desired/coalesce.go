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
func (c *Controller) coalesce(owner string, p *proposal) *batch {
	c.mu.Lock()
	defer c.mu.Unlock()
	b := c.waiting[owner]
	if b == nil {
		b = &batch{done: make(chan struct{})}
		c.waiting[owner] = b
		time.AfterFunc(time.Duration(c.file.Coalesce), func() { c.flush(owner, b) })
	}
	b.puts = append(b.puts, p)
	return b
}

func (c *Controller) flush(owner string, b *batch) {
	c.mu.Lock()
	delete(c.waiting, owner) // from now on no change joins it
	c.mu.Unlock()
	b.change, b.err = c.put(owner, b.puts)
	close(b.done)
}
