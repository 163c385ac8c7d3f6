package api

import (
	"context"
	"fmt"
	"net"
	"os/user"
	"strconv"
	"syscall"
)

type peerKey struct{}

// withPeer lets handlers say which user's process has a connection of a unix socket: it is a
// server's ConnContext.
func withPeer(ctx context.Context, conn net.Conn) context.Context {
	local, is := conn.(*net.UnixConn)
	if !is {
		return ctx
	}
	raw, err := local.SyscallConn()
	if err != nil {
		return ctx
	}
	var peer *syscall.Ucred
	err = raw.Control(func(fd uintptr) {
		peer, err = syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED)
	})
	if err != nil || peer == nil {
		return ctx
	}
	return context.WithValue(ctx, peerKey{}, *peer)
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
