package desired

import (
	"context"

	"weir.io/weir/internal/model"
)

// Edit makes of an owner's services what edit makes of them: it is called inside of the
// store's transaction, perhaps several times, with services that it must leave as they are,
// and returns others, or nil to change nothing.
func (k *Keeper) Edit(ctx context.Context, owner string, edit func([]model.Service) []model.Service) (Change, error) {
	return k.submit(ctx, owner, proposal{edit: edit})
}
