package health

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"weir.io/weir/internal/model"
	"weir.io/weir/internal/privilege"
	"weir.io/weir/internal/program"
)

// The limits of a check's program: it looks at a backend, and should leave this host alone. Data is what it
// writes to in its memory, in bytes; a program of Go or Java reserves more than it uses.
const (
	mostData  = 512 << 20
	mostFiles = 256
	mostFile  = 16 << 20 // bytes that a file of its may have
)

// probeExec runs a check's program for one backend. It has no rights of this process's: capabilities and
// set-user-ID of files do not work for it (see [privilege.Keep]), and its user is another one than root.
func probeExec(ctx context.Context, a *attempt) error {
	a.at = running
	as, err := privilege.Account(a.check.Programs.Account())
	if err != nil {
		return failure(Local, "this host cannot run it: %v", err)
	}
	p := program.Program{
		Argv: a.check.How.Exec, Dir: "/", Env: environment(a), As: as, Alone: true,
		Limits: map[int]uint64{
			unix.RLIMIT_DATA: mostData, unix.RLIMIT_NOFILE: mostFiles, unix.RLIMIT_FSIZE: mostFile, unix.RLIMIT_CORE: 0,
			unix.RLIMIT_CPU: uint64(a.timeout/time.Second) + 1,
		},
	}
	said, err := p.Run(ctx)
	switch {
	case errors.As(err, new(*program.StartError)):
		return failure(Local, "this host cannot %v", err)
	case err != nil && ctx.Err() != nil:
		return ctx.Err()
	case err != nil:
		return failure(Exit, "%s", strings.TrimSuffix(fmt.Sprintf("%v: %s", err, firstLine(said)), ": "))
	}
	return nil
}

// environment is all that a check's program is told.
func environment(a *attempt) []string {
	c := a.check
	s := &c.Target.Service
	list := []string{
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8",
		"WEIR_SERVICE=" + c.Service, "WEIR_BACKEND=" + c.Backend, "WEIR_ADDRESS=" + c.To.Addr().String(),
		"WEIR_VIP=" + s.VIP.String(), "WEIR_PROTOCOL=" + s.Protocol.String(),
	}
	if port := c.To.Port(); port != 0 {
		list = append(list, fmt.Sprintf("WEIR_PORT=%d", port))
	}
	if in := s.Segment; in != (model.Segment{}) {
		list = append(list, "WEIR_SEGMENT="+in.String())
	}
	return list
}

// firstLine is the first line with something in it.
func firstLine(text string) string {
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line != "" {
			return line
		}
	}
	return ""
}
