package api

import (
	"context"
	"fmt"
	"net/http"

	"weir.io/weir/internal/model"
)

// Caller is the client of a request, and what it may do.
type Caller struct {
	Name  string
	Role  model.Role
	Owner string // the owner whose set the caller may write, with RoleWrite
}

type callerKey struct{}

func withCaller(ctx context.Context, c Caller) context.Context {
	return context.WithValue(ctx, callerKey{}, c)
}

// CallerName returns the name of the caller whose request a context is of.
func CallerName(ctx context.Context) string { return callerOf(ctx).Name }

// localCaller is the name of all callers on the unix socket.
const localCaller = "local"

// CallerUser returns the name of the caller whose request a context is of; for a process at the
// unix socket, its user.
func CallerUser(ctx context.Context) string {
	if name := CallerName(ctx); name != localCaller {
		return name
	}
	return localUser(ctx)
}

// callerOf returns the caller of a request. Without one it may do nothing.
func callerOf(ctx context.Context) Caller {
	c, _ := ctx.Value(callerKey{}).(Caller)
	return c
}

// refuse says why a caller may not do what needs a role, or returns nil. If it is about an
// owner's set, owner is the only owner that may write it.
func (c Caller) refuse(needs model.Role, owner string, owned bool) *Problem {
	if c.Role == "" {
		return NewProblem(http.StatusUnauthorized, "nobody is named who asks")
	}
	if !c.Role.Includes(needs) {
		return NewProblem(http.StatusForbidden, fmt.Sprintf("%s has the role %s, and this needs %s", c.Name, c.Role, needs))
	}
	if owned && c.Role != model.RoleAdmin && owner != c.Owner {
		return NewProblem(http.StatusForbidden, fmt.Sprintf("%s may write the set of owner %q, and this is about that of owner %q", c.Name, c.Owner, owner))
	}
	return nil
}
