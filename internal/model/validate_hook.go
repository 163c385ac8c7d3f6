package model

import (
	"fmt"
	"net/url"
)

func (c *Config) setHookDefaults() {
	for i := range c.Hooks {
		if c.Hooks[i].Timeout == 0 {
			c.Hooks[i].Timeout = DefaultHookTimeout
		}
	}
}

func (v *validation) hooks() {
	if len(v.config.Hooks) > maxHooks {
		v.errs.add("hooks", "has %d hooks, more than %d", len(v.config.Hooks), maxHooks)
	}
	names := map[string]string{}
	for i := range v.config.Hooks {
		h := &v.config.Hooks[i]
		at := fmt.Sprintf("hooks[%d]", i)
		if problem := nameProblem(h.Name); problem != "" {
			v.errs.add(at+".name", "%s", problem)
		} else if first, dup := names[h.Name]; dup {
			v.errs.addWithOther(at+".name", first, "%q is the name of another hook", h.Name)
		} else {
			names[h.Name] = at + ".name"
		}
		v.hookTarget(at, h)
		v.duration(at+".timeout", h.Timeout, minHookTimeout, maxHookTimeout)
	}
}

// hookTarget checks what a hook calls: one program, or one server.
func (v *validation) hookTarget(at string, h *Hook) {
	switch {
	case len(h.Exec) == 0 && h.URL == "":
		v.errs.add(at, "needs exec, a program, or url, a server")
	case len(h.Exec) > 0 && h.URL != "":
		v.errs.addWithOther(at+".url", at+".exec", "is a second one to call: a hook has exec or url")
	case len(h.Exec) > 0:
		if h.Exec[0] == "" {
			v.errs.add(at+".exec[0]", "is empty; it is the program")
		}
		v.fromRoot(at+".exec[0]", h.Exec[0])
		if h.TokenFile != "" {
			v.errs.addWithOther(at+".token-file", at+".exec", "is for a url only")
		}
	default:
		if problem := hookURLProblem(h.URL); problem != "" {
			v.errs.add(at+".url", "%s", problem)
		}
		v.fromRoot(at+".token-file", h.TokenFile)
	}
}

func hookURLProblem(text string) string {
	u, err := url.Parse(text)
	switch {
	case err == nil && u.User != nil: // the message must not repeat it
		return "has a password in it, which everybody would see who sees the configuration: use token-file"
	case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "":
		return fmt.Sprintf("%q is not http://HOST/PATH or https://HOST/PATH", text)
	case u.Fragment != "":
		return fmt.Sprintf("%q has a fragment (#), which no server is told", text)
	}
	return ""
}
