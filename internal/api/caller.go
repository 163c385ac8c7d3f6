package api

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os/user"
	"strconv"
	"strings"
	"syscall"

	"weir.io/weir/internal/model"
)

// Caller is the client of a request, and what it may do.
type Caller struct {
	Name  string
	Role  model.Role
	Owner string   // the owner whose set the caller may write, with RoleWrite
	Agent Reporter // of what it reports, with RoleAgent
	// Segments are those that the caller is for alone; empty: it is for all.
	Segments segmentSet
}

// segmentSet is segments in one text, so that callers can be compared.
type segmentSet string

func newSegmentSet(list []model.Segment) segmentSet { return segmentSet(model.SegmentList(list)) }

// list returns them; nil: there are none.
func (s segmentSet) list() (list []model.Segment) {
	if s == "" {
		return nil
	}
	for text := range strings.SplitSeq(string(s), ", ") {
		var id model.Segment
		if id.UnmarshalText([]byte(text)) == nil { // it was made from segments
			list = append(list, id)
		}
	}
	return list
}

// limited reports whether the caller is for some segments alone.
func (c Caller) limited() bool { return c.Segments != "" }

// CallerSegments returns the segments for which the caller is alone whose request a context is of; nil: it is
// for all.
func CallerSegments(ctx context.Context) []model.Segment { return callerOf(ctx).Segments.list() }

// outside refuses what is not of the caller's segments.
func (c Caller) outside(what string) *Problem {
	return NewProblem(http.StatusForbidden, fmt.Sprintf("%s is for the segments %s alone, and %s", c.Name, c.Segments, what))
}

// refuseSet says why a caller that is for some segments may not ask about an owner's set, or returns nil: it may
// about its own.
func (c Caller) refuseSet(owner string) *Problem {
	if c.limited() && (owner != c.Owner || owner == "") {
		p := c.outside("this is about a set that is not its own")
		p.Owner = c.Owner
		return p
	}
	return nil
}

type callerKey struct{}

// WithCaller returns the context of a request of a caller.
func WithCaller(ctx context.Context, c Caller) context.Context {
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
		p := NewProblem(http.StatusForbidden, fmt.Sprintf("%s may write the set of owner %q, and this is about that of owner %q", c.Name, c.Owner, model.Shown(owner)))
		p.Owner = c.Owner
		return p
	}
	return nil
}

type peerKey struct{}

// withPeer lets handlers say which user's process has a connection of a unix socket: it is a
// server's ConnContext.
func withPeer(ctx context.Context, conn net.Conn) context.Context {
	if peer := peerOf(conn); peer != nil {
		return context.WithValue(ctx, peerKey{}, *peer)
	}
	return ctx
}

// peerOf returns the process that made the socket at the other end, and its user; nil: not known. The
// process is 0 if it is in another PID namespace.
func peerOf(conn net.Conn) (peer *syscall.Ucred) {
	local, is := conn.(*net.UnixConn)
	if !is {
		return nil
	}
	raw, err := local.SyscallConn()
	if err != nil {
		return nil
	}
	_ = raw.Control(func(fd uintptr) {
		if found, err := syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED); err == nil {
			peer = found
		}
	})
	return peer
}

// localUser is the user of the process at the unix socket.
func localUser(ctx context.Context) string {
	peer, known := ctx.Value(peerKey{}).(syscall.Ucred)
	if !known {
		return localCaller
	}
	if u, err := user.LookupId(strconv.FormatUint(uint64(peer.Uid), 10)); err == nil {
		return u.Username
	}
	return fmt.Sprintf("uid %d", peer.Uid)
}
