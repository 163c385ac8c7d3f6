package api

import "net/http"

// challenges are what unknown callers are asked for. The second one makes a browser ask its user
// for the name of one of api.clients, and for its token: so the dashboard needs no public page.
var challenges = []string{"Bearer", `Basic realm="weir", charset="UTF-8"`}

// logoutPath is where a browser forgets its name and token.
const logoutPath = "/logout"

// crossOrigin finds requests that change something, and that a page of another origin makes a
// browser send.
var crossOrigin = http.NewCrossOriginProtection()

// foreign says why a request is refused that a browser sends for another site's page, or returns
// nil. A browser itself adds its password or certificate, even to requests that other pages cause.
// The other page cannot read the answer, and yet the request would take effect. A link from there
// that the user follows is allowed.
func foreign(r *http.Request) *Problem {
	site := r.Header.Get("Sec-Fetch-Site")
	follows := r.Method == http.MethodGet && r.Header.Get("Sec-Fetch-Mode") == "navigate" && r.Header.Get("Sec-Fetch-Dest") == "document"
	if (site == "cross-site" || site == "same-site") && !follows || crossOrigin.Check(r) != nil {
		return NewProblem(http.StatusForbidden, "a page of another origin asks, which may not")
	}
	return nil
}

// leaves reports whether a user asks the browser to forget the name and token. It does so when it
// gets 401 once more. It would show a certificate again.
func leaves(r *http.Request) bool {
	_, _, byName := r.BasicAuth()
	return byName && r.URL.Path == logoutPath
}

// refuseStranger tells a caller to authenticate.
func refuseStranger(w http.ResponseWriter, detail string) {
	for _, one := range challenges {
		w.Header().Add("WWW-Authenticate", one)
	}
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("Connection", "close") // there are few connections for all
	writeProblem(w, NewProblem(http.StatusUnauthorized, detail))
}

// asking is a request that is being answered.
type asking struct {
	request *http.Request
	caller  Caller
	end     func()
}

// begins notes a request of a known caller.
func (r *Remote) begins(a *asking) {
	r.askers.Lock()
	defer r.askers.Unlock()
	r.asked[a] = struct{}{}
}

func (r *Remote) ends(a *asking) {
	a.end()
	r.askers.Lock()
	defer r.askers.Unlock()
	delete(r.asked, a)
}

// endUnknown ends the answers to callers that the files no longer know, or know as others: some
// answers do not end by themselves.
func (r *Remote) endUnknown(now *access) {
	r.askers.Lock()
	defer r.askers.Unlock()
	for a := range r.asked {
		if caller, known := now.caller(a.request); !known || caller != a.caller {
			a.end()
		}
	}
}
