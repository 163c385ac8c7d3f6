package privilege

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
	"kernel.org/pub/linux/libs/security/libcap/cap"

	"weir.io/weir/internal/model"
)

// Keep drops, on all threads and for good, every capability that this process does not need for
// what it does now by one of these configurations, or may be configured to do later. Programs that it starts get none, even as root
// (but see [HandOn]), and cannot get any themselves: capabilities and set-user-ID of files do not
// work (no_new_privs). It returns the names of those that are kept.
//
// The order matters: each of these steps except the last two takes CAP_SETPCAP. A process without
// it, which root did not start, has nothing to drop in them.
func Keep(p Process, configs ...*model.Config) ([]string, error) {
	have := cap.GetProc()
	now, later := kept(have, p, configs)
	all := slices.Concat(now, later)
	if has(have, cap.SETPCAP) {
		raised := cap.NewSet()
		if err := errors.Join(raised.SetFlag(cap.Permitted, true, append(slices.Clone(all), cap.SETPCAP)...),
			raised.SetFlag(cap.Effective, true, cap.SETPCAP), raised.SetProc()); err != nil {
			return nil, fmt.Errorf("drop capabilities: %w", err)
		}
		if err := bound(later); err != nil {
			return nil, err
		}
	}
	if err := cap.ResetAmbient(); err != nil {
		return nil, fmt.Errorf("drop ambient capabilities: %w", err)
	}
	left := cap.NewSet()
	err := errors.Join(left.SetFlag(cap.Permitted, true, all...), left.SetFlag(cap.Effective, true, now...), left.SetProc())
	if err != nil {
		return nil, fmt.Errorf("drop capabilities: %w", err)
	}
	if _, err := cap.Prctlw(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return nil, fmt.Errorf("set no_new_privs: %w", err)
	}
	return names(all), nil
}

// kept returns the capabilities that a process keeps for itself, and for programs that it starts.
func kept(have *cap.Set, p Process, configs []*model.Config) (now, later []cap.Value) {
	for _, n := range Needs(p) {
		switch {
		case !has(have, n.value):
			if standsFor(n.value) && has(have, cap.SYS_ADMIN) && !slices.Contains(now, cap.SYS_ADMIN) {
				now = append(now, cap.SYS_ADMIN)
			}
		case n.ifNeeded && !slices.ContainsFunc(configs, func(c *model.Config) bool { return n.NeededBy(c) != "" }):
		case n.handedOn:
			later = append(later, n.value)
		default:
			now = append(now, n.value)
		}
	}
	for _, c := range configs {
		if p != Run || c == nil {
			continue
		}
		for _, n := range ofHooks(c) {
			if has(have, n.value) && !slices.Contains(later, n.value) {
				later = append(later, n.value)
			}
		}
	}
	return now, later
}

// bound bounds the capabilities of started programs to those handed on; root's programs do not get
// even those just because they are root's.
func bound(later []cap.Value) error {
	var drop []cap.Value
	for v := cap.Value(0); v < cap.MaxBits(); v++ {
		if is, err := cap.GetBound(v); err == nil && is && !slices.Contains(later, v) {
			drop = append(drop, v)
		}
	}
	if err := cap.DropBound(drop...); err != nil {
		return fmt.Errorf("drop capabilities of the bounding set: %w", err)
	}
	if err := (cap.GetSecbits() | cap.SecbitNoRoot | cap.SecbitNoRootLocked).Set(); err != nil {
		return fmt.Errorf("take root's capabilities from programs that are started: %w", err)
	}
	return nil
}

// HandOn returns those capabilities that a program needs and this process may give to it: they
// are for [syscall.SysProcAttr.AmbientCaps].
func HandOn(to Process) []uintptr {
	var given []uintptr
	have := cap.GetProc()
	for _, n := range Needs(to) {
		if bounded, err := cap.GetBound(n.value); err == nil && bounded && has(have, n.value) {
			given = append(given, uintptr(n.value))
		}
	}
	return given
}

// Give returns capabilities for a program that this process starts, for [syscall.SysProcAttr.AmbientCaps],
// or which of them it cannot give any more.
func Give(capabilities []string) ([]uintptr, error) {
	var given []uintptr
	have := cap.GetProc()
	for _, name := range capabilities {
		value, err := cap.FromName(strings.ToLower(name))
		if err != nil {
			return nil, err
		}
		if !has(have, value) {
			return nil, fmt.Errorf("this process does not have %s, or has dropped it: restart weir run to give it to programs", name)
		}
		if bounded, err := cap.GetBound(value); err != nil || !bounded {
			return nil, fmt.Errorf("%s for programs was dropped when this process started, because its configuration gave it to none: restart weir run", name)
		}
		given = append(given, uintptr(value))
	}
	return given, nil
}

func names(values []cap.Value) []string {
	var list []string
	for _, v := range values {
		list = append(list, strings.ToUpper(v.String()))
	}
	return list
}
