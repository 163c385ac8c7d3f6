package main

import (
	"context"
	"errors"
	"net/http"

	"weir.io/weir/internal/api"
	"weir.io/weir/internal/config"
	"weir.io/weir/internal/desired"
	"weir.io/weir/internal/store"
)

// sets is the API's way to the sets of a director's store.
type sets struct{ keeper *desired.Keeper }

// Put makes a set what runs, beside the file and the other sets.
func (s *sets) Put(ctx context.Context, owner string, text []byte, dryRun bool) (api.SetChange, error) {
	if err := store.CheckOwner(owner); err != nil {
		return api.SetChange{}, refused(err)
	}
	services, err := config.ParseSet("set", text)
	if err != nil {
		return api.SetChange{}, refused(err)
	}
	put := s.keeper.Put
	if dryRun {
		put = s.keeper.DryPut
	}
	change, err := put(ctx, owner, services)
	if bad := (*desired.RefusedError)(nil); errors.As(err, &bad) {
		err = refused(err)
	}
	return api.SetChange(change), err
}

func refused(err error) error {
	return api.Problem{Title: "Refused", Status: http.StatusUnprocessableEntity, Detail: err.Error()}
}
