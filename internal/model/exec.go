package model

import (
	"fmt"
	"slices"
	"strings"
)

// ExecChecks says how the programs of checks run on this director.
type ExecChecks struct {
	User   string `json:"user,omitempty"`    // the user that they run as; empty: the director's own, or nobody if that is root
	AtOnce uint16 `json:"at-once,omitempty"` // how many run at once, of all services; 0: the default
	// Sets are the programs that services in sets may run: else only those in the file run any.
	Sets []string `json:"sets,omitempty"`
}

// The default and the bounds of programs of checks.
const (
	DefaultExecAtOnce = 16
	maxExecAtOnce     = 256
	maxExecArguments  = 64
)

// AtOnceOrDefault returns how many programs run at once.
func (e *ExecChecks) AtOnceOrDefault() int {
	if e == nil || e.AtOnce == 0 {
		return DefaultExecAtOnce
	}
	return int(e.AtOnce)
}

// Account returns the user that programs run as; empty: the default.
func (e *ExecChecks) Account() string {
	if e == nil {
		return ""
	}
	return e.User
}

func (v *validation) execChecks() {
	e := v.config.Director.ExecChecks
	if e == nil {
		return
	}
	if e.User == "root" || notGraphic(e.User) || strings.ContainsAny(e.User, ":/") {
		v.errs.add("director.exec-checks.user", "%q is not a user without rights", e.User)
	}
	if e.AtOnce > maxExecAtOnce {
		v.errs.add("director.exec-checks.at-once", "%d is out of range 1 to %d", e.AtOnce, maxExecAtOnce)
	}
	for i, program := range e.Sets {
		at := fmt.Sprintf("director.exec-checks.sets[%d]", i)
		if program == "" {
			v.errs.add(at, "is empty; it is a program")
		}
		v.fromRoot(at, program)
	}
}

// exec checks what a check runs.
func (h healthValidation) exec() {
	c := h.check
	switch {
	case c.Kind == CheckExec && len(c.Exec) == 0:
		h.add("exec", "is required: a program and its arguments (exec: [/usr/local/bin/check-mail, --quick])")
		return
	case len(c.Exec) == 0:
		return
	case len(c.Exec) > maxExecArguments:
		h.add("exec", "has %d arguments, more than %d", len(c.Exec)-1, maxExecArguments-1)
	case c.Exec[0] == "":
		h.add("exec[0]", "is empty; it is the program")
	}
	h.fromRoot(h.path("exec[0]"), c.Exec[0])
	for i, argument := range c.Exec {
		at := fmt.Sprintf("exec[%d]", i)
		h.text(at, len(argument))
		if strings.ContainsRune(argument, 0) {
			h.add(at, "has a zero byte, which no program is given")
		}
	}
}

// execInSet refuses programs of a service in a set that the director's file does not allow: else a client that may
// write sets would run programs on directors.
func (h healthValidation) execInSet() {
	c := h.check
	if c.Kind != CheckExec || len(c.Exec) == 0 || h.index < h.own || h.elsewhere || len(h.config.Director.Interfaces) == 0 {
		return // the file's own, or an agent's: it runs none
	}
	var allowed []string
	if e := h.config.Director.ExecChecks; e != nil {
		allowed = e.Sets
	}
	if !slices.Contains(allowed, c.Exec[0]) {
		h.errs.addWithOther(h.path("exec[0]"), "director.exec-checks.sets",
			"is a program on the director, which services in sets may run only if the director's file names it in director.exec-checks.sets: %q is not there", c.Exec[0])
	}
}
