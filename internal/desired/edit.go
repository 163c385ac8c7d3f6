package desired

import (
	"context"

	"weir.io/weir/internal/model"
)

// Edit replaces an owner's services by what edit returns for them: edit is called inside the
// store's transaction, perhaps several times, with services that it must not change, and returns
// others, or nil to change nothing.
func (k *Keeper) Edit(ctx context.Context, owner string, edit func([]model.Service) []model.Service) (Change, error) {
	return k.submit(ctx, owner, proposal{edit: edit})
}
