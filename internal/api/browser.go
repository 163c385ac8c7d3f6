package api

import "net/http"

// challenges are what strangers are asked for. By the second one a browser asks who sits
// before it for the name of one of api.clients, and for its token: so it needs no page that
// everybody may read.
var challenges = []string{"Bearer", `Basic realm="weir", charset="UTF-8"`}

// logoutPath is where a browser forgets whom it asks as.
const logoutPath = "/logout"

// crossOrigin finds requests that change something, and that a page of another origin has a
// browser send.
var crossOrigin = http.NewCrossOriginProtection()

// foreign says why a request is refused that a browser sends for a page that is not this
// director's, or returns nil. A browser adds by itself what it is believed by, a password or
// a certificate, also to what others have it ask for. Such a page could not read the answer,
// but it would count. Somebody may follow a link from there to here.
func foreign(r *http.Request) *Problem {
	site := r.Header.Get("Sec-Fetch-Site")
	follows := r.Method == http.MethodGet && r.Header.Get("Sec-Fetch-Mode") == "navigate" && r.Header.Get("Sec-Fetch-Dest") == "document"
	if (site == "cross-site" || site == "same-site") && !follows || crossOrigin.Check(r) != nil {
		return NewProblem(http.StatusForbidden, "a page of another origin asks, which may not")
	}
	return nil
}

// leaves reports whether somebody asks to be forgotten by the browser. It does so when it
// hears 401 once more. A certificate it would show again.
func leaves(r *http.Request) bool {
	_, _, byName := r.BasicAuth()
	return byName && r.URL.Path == logoutPath
}

// refuseStranger tells somebody to show who they are.
func refuseStranger(w http.ResponseWriter, detail string) {
	for _, one := range challenges {
		w.Header().Add("WWW-Authenticate", one)
	}
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("Connection", "close") // there are not many for all
	writeProblem(w, NewProblem(http.StatusUnauthorized, detail))
}

// asking is a request that is being answered.
type asking struct {
	request *http.Request
	caller  Caller
	end     func()
}

// begins notes a request of somebody who is known.
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

// endUnknown ends the answers to those whom the files do not know any more, or know as
// somebody else: some answers do not end by themselves.
func (r *Remote) endUnknown(now *access) {
	r.askers.Lock()
	defer r.askers.Unlock()
	for a := range r.asked {
		if caller, known := now.caller(a.request); !known || caller != a.caller {
			a.end()
		}
	}
}
