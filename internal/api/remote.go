package api

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"weir.io/weir/internal/model"
	"weir.io/weir/internal/retry"
)

// Bounds on what strangers can take.
const (
	handshakeTimeout  = 5 * time.Second
	mostConnections   = 256 // of one listener
	lookAtFilesEvery  = 10 * time.Second
	remoteHeaderBytes = 8 << 10
)

// Remote answers over TCP: with TLS to callers that the configuration knows, and only on this host
// to all that only read.
type Remote struct {
	server    *Server
	log       *slog.Logger
	access    atomic.Pointer[access]
	callers   *paces
	strangers *paces // by their addresses
	agents    *paces // callers with the role agent, besides
	held      *quota // requests of each of these that are being answered
	refused   *refusals

	mu        sync.Mutex
	config    model.API
	problem   error
	listeners map[listening]*served
	serving   sync.WaitGroup
	stop      context.CancelFunc
	watching  sync.WaitGroup

	activeMu sync.Mutex
	active   map[*activeRequest]struct{} // by callers that the files know
}

// listening is one listener.
type listening struct {
	at       netip.AddrPort
	readOnly bool
}

// served is the server at a listener.
type served struct {
	*http.Server
	room *room
}

// NewRemote returns a Remote that does not answer yet.
func NewRemote(server *Server, log *slog.Logger) *Remote {
	ctx, stop := context.WithCancel(context.Background())
	r := &Remote{server: server, log: log, callers: newPaces(time.Second/callerRate, callerBurst, noBound),
		strangers: newPaces(time.Second/strangerRate, strangerBurst, mostStrangers),
		agents:    newPaces(time.Second/agentRate, agentBurst, noBound), held: newQuota(noBound, agentAtOnce), refused: newRefusals(), listeners: map[listening]*served{}, stop: stop,
		active: map[*activeRequest]struct{}{}}
	r.watching.Go(func() { r.watchFiles(ctx) })
	return r
}

// Set makes Remote follow a valid configuration. Failing files or addresses are tried again until
// they work; the earlier configuration goes on where it can.
func (r *Remote) Set(c model.API) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.config = c
	return r.apply()
}

// Problem returns what is wrong with the last configuration or the certificates, or nil.
func (r *Remote) Problem() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return errors.Join(r.problem, r.access.Load().outdated(&r.config, time.Now()))
}

// Close ends all connections. Closing it again does nothing.
func (r *Remote) Close() {
	r.stop()
	r.watching.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	for at := range r.listeners {
		r.end(at)
	}
	r.serving.Wait()
}

// watchFiles reads the files again from time to time: other programs renew certificates without notice.
func (r *Remote) watchFiles(ctx context.Context) {
	tick := time.NewTicker(lookAtFilesEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		r.mu.Lock()
		if before := r.problem; len(r.config.Listen)+len(r.config.ReadOnly) > 0 {
			if err := r.apply(); err != nil && (before == nil || before.Error() != err.Error()) {
				r.log.Error("the API is not what the configuration says", "error", err)
			}
		}
		r.logCrowds()
		r.mu.Unlock()
	}
}

// logCrowds says at which listeners strangers hold all connections. It is called with the lock
// held.
func (r *Remote) logCrowds() {
	for at, here := range r.listeners {
		if went := here.room.crowd(); went > 0 {
			r.log.Warn("strangers hold all connections of the API, and the oldest of theirs were ended", "address", at.at, "ended", went)
		}
	}
}

// apply is called with the lock held.
func (r *Remote) apply() error {
	read, err := readAccess(&r.config)
	if err == nil {
		before := r.access.Swap(read)
		r.endUnknown(read)
		r.forgetRefused(before, read)
	}
	want := map[listening]bool{}
	for _, at := range r.config.Listen {
		// Without a certificate no caller can be answered.
		want[listening{at, false}] = r.access.Load() != nil && r.access.Load().certificate != nil
	}
	for _, at := range r.config.ReadOnly {
		want[listening{at, true}] = true
	}
	for at := range r.listeners {
		if !want[at] {
			r.end(at)
		}
	}
	for at, possible := range want {
		if _, there := r.listeners[at]; !there && possible {
			err = errors.Join(err, r.listen(at))
		}
	}
	r.problem = err
	return err
}

func (r *Remote) listen(at listening) error {
	listener, err := net.Listen("tcp", at.at.String())
	if err != nil {
		return fmt.Errorf("api: %w", err)
	}
	room := newRoom(listener, mostConnections)
	handler := r.checked
	if at.readOnly {
		handler = r.readOnly
	}
	server := &http.Server{
		Handler:           http.HandlerFunc(handler),
		ConnContext:       withGuest,
		ConnState:         r.noteHandshake,
		ReadHeaderTimeout: handshakeTimeout,
		ReadTimeout:       readTimeout,
		WriteTimeout:      writeTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    remoteHeaderBytes,
		ErrorLog:          slog.NewLogLogger(r.log.Handler(), slog.LevelDebug),
		Protocols:         new(http.Protocols),
	}
	server.DisableGeneralOptionsHandler = true // "OPTIONS *" would be answered for any caller
	server.Protocols.SetHTTP1(true)            // then a stranger can make the process do only one request at a time
	if !at.readOnly {
		server.TLSConfig = &tls.Config{MinVersion: tls.VersionTLS13,
			GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return r.access.Load().tls(), nil },
			GetCertificate:     func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return r.access.Load().certificate, nil }}
	}
	r.listeners[at] = &served{server, room}
	r.serving.Go(func() {
		var err error
		if at.readOnly {
			err = server.Serve(room)
		} else {
			err = server.ServeTLS(room, "", "")
		}
		if !errors.Is(err, http.ErrServerClosed) {
			r.log.Error("the API ends", "address", at.at, "error", err)
		}
	})
	r.log.Info("the API answers", "address", at.at, "read-only", at.readOnly)
	return nil
}

func (r *Remote) end(at listening) {
	_ = r.listeners[at].Close()
	delete(r.listeners, at)
	r.log.Info("the API does not answer any more", "address", at.at)
}

// checked answers callers that the configuration knows. All others get the same answer, whatever
// they ask.
func (r *Remote) checked(w http.ResponseWriter, request *http.Request) {
	caller, known := r.access.Load().caller(request)
	switch {
	case !known:
		markKnown(request.Context(), false)
		shown := r.noteUnknown(request)
		r.slow(request)
		text := "show the token or the certificate of one of api.clients"
		if shown != "" {
			text = "no client of api.clients has " + shown + " that was shown"
		}
		refuseStranger(w, text)
		return
	case !claim(request.Context(), caller):
		w.Header().Set("Connection", "close")
		w.Header().Set("Retry-After", "1")
		writeProblem(w, NewProblem(http.StatusTooManyRequests, "this client has too many connections: use fewer"))
		return
	case logsOut(request):
		refuseStranger(w, "the browser has forgotten whom it has asked as")
		return
	case !r.callers.take(caller.Name):
		tooMany(w)
		return
	}
	if caller.Role == model.RoleAgent {
		// There may be more agents than connections, and some may be hostile: what they do not use goes first.
		defer markKnown(request.Context(), false)
		taken, _ := r.held.take(caller.Name, 1)
		if taken {
			defer r.held.give(caller.Name, 1)
		}
		if !taken || !r.agents.take(caller.Name) {
			w.Header().Set("Connection", "close")
			tooMany(w)
			return
		}
	}
	if p := crossSite(request); p != nil {
		writeProblem(w, p)
		return
	}
	if _, _, byName := request.BasicAuth(); byName {
		w.Header().Set("Weir-Client", caller.Name) // so that the dashboard can offer to leave
	}
	ctx, end := context.WithCancel(WithCaller(request.Context(), caller))
	a := &activeRequest{request, caller, end}
	r.track(a)
	defer r.untrack(a)
	if now, still := r.access.Load().caller(request); !still || now != caller {
		end() // the files have changed in between
	}
	r.server.route(w, request.WithContext(ctx))
}

// slow makes a stranger wait that asks too often.
func (r *Remote) slow(request *http.Request) {
	if !r.strangers.take(hostOf(request.RemoteAddr)) {
		retry.Sleep(request.Context(), strangerPause)
	}
}

// readOnly answers callers on this host. These may be browsers that show other sites' pages: so
// callers must ask by localhost or a loopback address: another name could be another site's.
func (r *Remote) readOnly(w http.ResponseWriter, request *http.Request) {
	if !ownName(request.Host) {
		writeProblem(w, NewProblem(http.StatusMisdirectedRequest, "ask by 127.0.0.1, [::1] or localhost"))
		return
	}
	if p := crossSite(request); p != nil {
		writeProblem(w, p)
		return
	}
	const name = "read-only"
	if !r.callers.take(name) {
		tooMany(w)
		return
	}
	// All callers on this host are alike: only requests that are being answered are remembered.
	markKnown(request.Context(), true)
	defer markKnown(request.Context(), false)
	r.server.route(w, request.WithContext(WithCaller(request.Context(), Caller{Name: name, Role: model.RoleRead})))
}

func ownName(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	if slices.Contains([]string{"localhost", "[::1]"}, host) {
		return true
	}
	a, err := netip.ParseAddr(host)
	return err == nil && a.IsLoopback()
}

func tooMany(w http.ResponseWriter) {
	w.Header().Set("Retry-After", "1")
	writeProblem(w, NewProblem(http.StatusTooManyRequests, "ask less often"))
}

// challenges are what unknown callers are asked for. The second one makes a browser ask its user
// for the name of one of api.clients, and for its token: so the dashboard needs no public page.
var challenges = []string{"Bearer", `Basic realm="weir", charset="UTF-8"`}

// logoutPath is where a browser forgets its name and token.
const logoutPath = "/logout"

// crossOrigin finds requests that change something, and that a page of another origin makes a
// browser send.
var crossOrigin = http.NewCrossOriginProtection()

// crossSite says why a request is refused that a browser sends for another site's page, or returns
// nil. A browser itself adds its password or certificate, even to requests that other pages cause.
// The other page cannot read the answer, and yet the request would take effect. A link from there
// that the user follows is allowed.
func crossSite(r *http.Request) *Problem {
	site := r.Header.Get("Sec-Fetch-Site")
	follows := r.Method == http.MethodGet && r.Header.Get("Sec-Fetch-Mode") == "navigate" && r.Header.Get("Sec-Fetch-Dest") == "document"
	if (site == "cross-site" || site == "same-site") && !follows || crossOrigin.Check(r) != nil {
		return NewProblem(http.StatusForbidden, "a page of another origin asks, which may not")
	}
	return nil
}

// logsOut reports whether a user asks the browser to forget the name and token. It does so when it
// gets 401 once more. It would show a certificate again.
func logsOut(r *http.Request) bool {
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

// activeRequest is a request that is being answered.
type activeRequest struct {
	request *http.Request
	caller  Caller
	end     func()
}

// track notes a request of a known caller.
func (r *Remote) track(a *activeRequest) {
	r.activeMu.Lock()
	defer r.activeMu.Unlock()
	r.active[a] = struct{}{}
}

func (r *Remote) untrack(a *activeRequest) {
	a.end()
	r.activeMu.Lock()
	defer r.activeMu.Unlock()
	delete(r.active, a)
}

// endUnknown ends the answers to callers that the files no longer know, or know as others: some
// answers do not end by themselves.
func (r *Remote) endUnknown(now *access) {
	r.activeMu.Lock()
	defer r.activeMu.Unlock()
	for a := range r.active {
		if caller, known := now.caller(a.request); !known || caller != a.caller {
			a.end()
		}
	}
}
