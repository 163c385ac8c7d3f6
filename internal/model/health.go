package model

import (
	"cmp"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"
)

// HealthCheck says how each director finds out which of a service's backends are healthy.
type HealthCheck struct {
	// Check is the name of one of the configuration's checks: what is asked is said there. A check that is
	// resolved has none.
	Check    string    `json:"check,omitempty"`
	From     string    `json:"-"` // the name of the check that was resolved; empty: it is the service's own
	Kind     CheckKind `json:"kind"`
	Interval Duration  `json:"interval,omitzero"` // from one probe of a backend to the next
	Jitter   Duration  `json:"jitter,omitzero"`   // how much longer or shorter an interval may be
	Timeout  Duration  `json:"timeout,omitzero"`  // of one probe, from its first packet to its last
	Rise     uint16    `json:"rise,omitempty"`    // successes in a row that make a backend healthy
	Fall     uint16    `json:"fall,omitempty"`    // failures in a row that make it unhealthy
	Panic    *uint8    `json:"panic,omitempty"`   // percent: with fewer healthy backends, all backends are used; 0: never
	// SlowStart is how long a backend takes to reach its whole share after it came or was down; 0:
	// it has its share at once.
	SlowStart  Duration    `json:"slow-start,omitzero"`
	StartDelay Duration    `json:"start-delay,omitzero"` // from when a backend is to be checked to its first probe
	Passive    *Passive    `json:"passive,omitempty"`    // nil: agents' reports change no share
	Port       uint16      `json:"port,omitempty"`       // that is probed; 0: the one that the backend serves
	To         CheckTo     `json:"to,omitempty"`         // what is probed; empty: the VIP where that is possible
	HTTP       *HealthHTTP `json:"http,omitempty"`       // kinds http and https
	TLS        *HealthTLS  `json:"tls,omitempty"`        // kinds https, tls, grpc and smtp
	GRPC       *HealthGRPC `json:"grpc,omitempty"`       // kind grpc
	UDP        *HealthUDP  `json:"udp,omitempty"`        // kind udp
	DNS        *HealthDNS  `json:"dns,omitempty"`        // kind dns
	SMTP       *HealthSMTP `json:"smtp,omitempty"`       // kind smtp
	Exec       []string    `json:"exec,omitempty"`       // kind exec: a program on the director, and its arguments
}

// HealthHTTP is one request or several, and the answers that are good.
type HealthHTTP struct {
	HealthRequest
	Version HTTPVersion `json:"version,omitempty"` // empty: 1.1
	// Requests are several, all of which must be answered well. Those without a method, host or status have
	// that of the section.
	Requests []HealthRequest `json:"requests,omitempty"`
}

// HealthRequest is a request, and the answers that are good.
type HealthRequest struct {
	Method     string        `json:"method,omitempty"`
	Path       string        `json:"path,omitempty"`
	Host       string        `json:"host,omitempty"`        // empty: the backend's address and port
	Status     []StatusRange `json:"status,omitempty"`      // that are good
	Body       string        `json:"body,omitempty"`        // text that a good answer's body has in its first 64 KiB
	BodyRegexp string        `json:"body-regexp,omitempty"` // RE2, that matches in them
	Digest     Digest        `json:"digest,omitempty"`      // of a good answer's whole body, of at most 1 MiB
}

// All returns the requests that are sent.
func (h *HealthHTTP) All() []HealthRequest {
	if len(h.Requests) == 0 {
		return []HealthRequest{h.HealthRequest}
	}
	return h.Requests
}

// HealthSMTP is a greeting, and what is asked for after it.
type HealthSMTP struct {
	Helo     string `json:"helo,omitempty"`     // the client's name; empty: its address
	StartTLS bool   `json:"starttls,omitempty"` // TLS begins on the connection, and not before it
}

// HealthTLS is what a server's certificate must have.
type HealthTLS struct {
	Name       string `json:"name,omitempty"`        // asked for (SNI) and looked for in the certificate
	CA         string `json:"ca,omitempty"`          // PEM: CAs that may have signed it; empty: as the system trusts
	SkipVerify bool   `json:"skip-verify,omitempty"` // any certificate will do
}

// HealthGRPC is what is asked of a server's grpc.health.v1.Health.
type HealthGRPC struct {
	Service string `json:"service,omitempty"` // empty: the server as a whole
}

// HealthUDP is a datagram, and the answer to it.
type HealthUDP struct {
	Send   Payload `json:"send,omitzero"`   // zero: an empty datagram
	Expect Payload `json:"expect,omitzero"` // that the answer contains; zero: it need not answer
}

// HealthDNS is a query, and the answers that are good.
type HealthDNS struct {
	Name   string    `json:"name"`
	Type   DNSType   `json:"type,omitzero"`
	RCodes []DNSCode `json:"rcodes,omitempty"` // that are good
}

// CheckKind is how backends are checked.
type CheckKind string

// The kinds of health checks.
const (
	CheckNone  CheckKind = "none"  // they are not checked
	CheckTCP   CheckKind = "tcp"   // a connection is made, and ended
	CheckSYN   CheckKind = "syn"   // a SYN is answered by a SYN-ACK; no connection is made
	CheckHTTP  CheckKind = "http"  // a request is answered well
	CheckHTTPS CheckKind = "https" // the same over TLS
	CheckTLS   CheckKind = "tls"   // a TLS handshake is made
	CheckGRPC  CheckKind = "grpc"  // the gRPC health protocol says SERVING
	CheckUDP   CheckKind = "udp"   // a datagram is not refused
	CheckDNS   CheckKind = "dns"   // a query is answered
	CheckICMP  CheckKind = "icmp"  // an echo request is answered
	CheckSCTP  CheckKind = "sctp"  // an INIT is answered by an INIT ACK; no association is made
	CheckSMTP  CheckKind = "smtp"  // a mail server greets, and answers EHLO
	CheckExec  CheckKind = "exec"  // a program ends with status 0

	// CheckRedirect asks whether connections can be handed over to a backend. Configuration files
	// cannot have it.
	CheckRedirect CheckKind = "redirect"
)

var checkKindNames = names[CheckKind]{kind: "kind", list: []name[CheckKind]{
	{CheckNone, "none"}, {CheckTCP, "tcp"}, {CheckSYN, "syn"}, {CheckHTTP, "http"}, {CheckHTTPS, "https"},
	{CheckTLS, "tls"}, {CheckGRPC, "grpc"}, {CheckUDP, "udp"}, {CheckDNS, "dns"}, {CheckICMP, "icmp"}, {CheckSCTP, "sctp"}, {CheckSMTP, "smtp"}, {CheckExec, "exec"}}}

// UnmarshalText reads the name; the error lists the known ones.
func (k *CheckKind) UnmarshalText(text []byte) error { return checkKindNames.read(k, text) }

// Names returns all names.
func (CheckKind) Names() []string { return checkKindNames.texts() }

// CheckTo is which of a backend's addresses is probed.
type CheckTo string

// What can be probed.
const (
	CheckVIP     CheckTo = "vip"     // the service's, by the way of its packets: see Service.ChecksVIP
	CheckAddress CheckTo = "address" // the backend's own, by the host's routes
)

var checkToNames = names[CheckTo]{kind: "target of checks", list: []name[CheckTo]{{CheckVIP, "vip"}, {CheckAddress, "address"}}}

// UnmarshalText reads the name; the error lists the known ones.
func (t *CheckTo) UnmarshalText(text []byte) error { return checkToNames.read(t, text) }

// Names returns all names.
func (CheckTo) Names() []string { return checkToNames.texts() }

// Checked reports whether the service's backends are checked.
func (s *Service) Checked() bool { return s.Health != nil && s.Health.Kind != CheckNone }

// probesPerHour returns how many probes of a backend there are in an hour, those of redirection among them.
func (s *Service) probesPerHour(b *Backend) (n uint64) {
	if b.State == Down {
		return 0
	}
	of := func(how *HealthCheck) uint64 {
		interval := cmp.Or(how.Interval, DefaultHealthInterval)
		return (uint64(time.Hour) + uint64(interval) - 1) / uint64(interval)
	}
	if s.Checked() {
		n += of(s.Health)
	}
	if s.ProbesRedirects() && b.RedirectsIn(s) {
		n += of(s.RedirectCheck())
	}
	return n
}

// LeastHealthy returns how many backends must be left for the VIP to be announced.
func (s *Service) LeastHealthy() uint32 {
	if s.MinHealthy == nil {
		return 1
	}
	return *s.MinHealthy
}

// TooFew reports whether so few backends are up that the checks are likelier to be wrong
// than so many backends.
func (s *Service) TooFew(up, down int) bool {
	return s.Checked() && s.Health.Panic != nil && 100*up < int(*s.Health.Panic)*(up+down)
}

// ProbePort returns the port of a backend that checks are sent to, 0: none is known.
func (s *Service) ProbePort(b *Backend) uint16 {
	if b.Check != nil && b.Check.Port != 0 {
		return b.Check.Port
	}
	if s.Health.Port != 0 {
		return s.Health.Port
	}
	return b.portIn(s)
}

// ProbeAddress returns where a backend is checked.
func (s *Service) ProbeAddress(b *Backend) netip.AddrPort {
	address := b.Address
	if b.checkedElsewhere() {
		address = b.ProbedAt()
	}
	return netip.AddrPortFrom(address, s.ProbePort(b))
}

// ProbedAt returns the address at which the backend is probed if that is not its own; invalid: it is.
func (b *Backend) ProbedAt() netip.Addr {
	if b.Check == nil {
		return netip.Addr{}
	}
	return b.Check.Address
}

// checkedElsewhere reports whether probes of the backend go to an address that is not its own.
func (b *Backend) checkedElsewhere() bool { return b.ProbedAt().IsValid() }

// ChecksVIP reports whether probes of a backend go to the VIP, by the way that the service's own
// packets take to it. In nat no backend has the VIP, and a packet of no service gets no further
// than an agent.
func (s *Service) ChecksVIP(b *Backend) bool {
	mode := b.ModeIn(*s)
	if b.Host.IsValid() || b.checkedElsewhere() {
		return false // the pod has its address, and knows nothing of the VIP
	}
	return s.Health.To != CheckAddress && (mode == L2DSR || mode == IPIP || mode == GUE) &&
		s.Health.Over(s.Protocol) == s.Protocol && s.Port.Contains(s.ProbePort(b))
}

// Over is the protocol of the probes for a service of this protocol; zero: ICMP, or a program's own.
func (h *HealthCheck) Over(service Protocol) Protocol {
	switch h.Kind {
	case CheckICMP, CheckExec:
		return 0
	case CheckDNS:
		if service == TCP {
			return TCP
		}
		return UDP
	case CheckUDP:
		return UDP
	case CheckSCTP:
		return SCTP
	}
	return TCP
}

// The defaults of a check's keys.
const (
	DefaultHealthInterval = Duration(time.Second)
	DefaultHealthTimeout  = Duration(time.Second)
	DefaultHealthRise     = 2
	DefaultHealthFall     = 3
	DefaultHealthPanic    = 20
)

// withDefaults returns the check with all defaults. The check itself is not written to: other
// services may share it.
func (h HealthCheck) withDefaults() *HealthCheck {
	h.Interval, h.Timeout = cmp.Or(h.Interval, DefaultHealthInterval), cmp.Or(h.Timeout, DefaultHealthTimeout)
	h.Jitter = cmp.Or(h.Jitter, max(h.Interval/10, 1))
	h.Rise, h.Fall = cmp.Or(h.Rise, DefaultHealthRise), cmp.Or(h.Fall, DefaultHealthFall)
	h.Passive = h.Passive.withDefaults()
	if h.Panic == nil {
		percent := uint8(DefaultHealthPanic)
		h.Panic = &percent
	}
	switch h.Kind {
	case CheckHTTP, CheckHTTPS:
		h.HTTP = h.HTTP.withDefaults()
	case CheckDNS:
		h.DNS = h.DNS.withDefaults()
	}
	return &h
}

func (h *HealthHTTP) withDefaults() *HealthHTTP {
	var out HealthHTTP
	if h != nil {
		out = *h
	}
	// No default for the version: other directors of the group may be of a weir that does not know the key.
	if len(out.Requests) == 0 {
		out.HealthRequest = out.HealthRequest.withDefaults()
		return &out
	}
	out.Requests = slices.Clone(out.Requests)
	for i := range out.Requests {
		r := &out.Requests[i]
		r.Method, r.Host = cmp.Or(r.Method, out.Method), cmp.Or(r.Host, out.Host)
		if len(r.Status) == 0 {
			r.Status = out.Status
		}
		*r = r.withDefaults()
	}
	return &out
}

func (r HealthRequest) withDefaults() HealthRequest {
	r.Method, r.Path = cmp.Or(r.Method, "GET"), cmp.Or(r.Path, "/")
	if len(r.Status) == 0 {
		r.Status = []StatusRange{{200, 299}}
	}
	return r
}

func (h *HealthDNS) withDefaults() *HealthDNS {
	if h == nil {
		return nil // it is required, and validation says so
	}
	out := *h
	out.Type = cmp.Or(out.Type, 1)
	if len(out.RCodes) == 0 {
		out.RCodes = []DNSCode{0}
	}
	return &out
}

// The bounds on checks. A probe costs both ends something, and a count in a row past 100
// is a mistake.
const (
	minHealthInterval = Duration(10 * time.Millisecond)
	maxHealthInterval = Duration(time.Hour)
	minHealthTimeout  = Duration(time.Millisecond)
	maxHealthTimeout  = Duration(time.Minute)
	maxStartDelay     = Duration(time.Hour)
	minSlowStart      = Duration(time.Second)
	maxSlowStart      = Duration(time.Hour)
	minPassivePace    = Duration(time.Second)
	maxPassivePace    = Duration(time.Hour)
	maxPassiveRate    = 1_000_000
	maxHealthCount    = 100
	maxHealthText     = 1024 // bytes of what is sent, or looked for
	maxHealthRequests = 16
)

// httpMethods are those of RFC 9110, section 9, and of RFC 5789.
var httpMethods = []string{"GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE", "TRACE", "CONNECT"}

// healthValidation is the validation of one service's check, or of a named one.
type healthValidation struct {
	*validation
	check   *HealthCheck
	service *Service // nil: it is a named check
	index   int
	named   string // the path of a named check
}

func (v *validation) health(i int) {
	s := &v.config.Services[i]
	if s.Health == nil {
		return
	}
	h := healthValidation{validation: v, check: s.Health, service: s, index: i}
	switch {
	case s.Health.Check != "":
		h.unresolved()
		return
	case v.wrongChecks[v.config.NamedBy[i]]:
		return
	}
	if h.itself() {
		h.inService()
	}
}

// itself checks what is wrong whatever the service is, and returns whether the kind is known.
func (h healthValidation) itself() bool {
	h.counts()
	h.sections()
	if !slices.ContainsFunc(checkKindNames.list, func(n name[CheckKind]) bool { return n.value == h.check.Kind }) {
		h.add("kind", "%q is not a kind of check", string(h.check.Kind))
		return false
	}
	h.http()
	h.tls()
	h.texts()
	h.dns()
	h.smtp()
	h.exec()
	return true
}

// inService checks what is wrong for the service.
func (h healthValidation) inService() {
	if h.check.SlowStart != 0 && h.service.Checked() {
		h.shared("slow-start")
	}
	h.passiveInService()
	if h.service.Checked() && h.check.Kind != CheckICMP && h.check.Kind != CheckExec {
		h.port()
	}
	h.sctp()
	h.execInSet()
}

func (h healthValidation) path(field string) string {
	if h.service == nil {
		return h.named + "." + field
	}
	return servicePath(h.index, "health."+field)
}

func (h healthValidation) add(field, format string, args ...any) {
	h.errs.add(h.path(field), format, args...)
}

func (h healthValidation) counts() {
	c := h.check
	h.duration("interval", c.Interval, minHealthInterval, maxHealthInterval)
	h.duration("timeout", c.Timeout, minHealthTimeout, maxHealthTimeout)
	if c.Jitter < 0 || c.Jitter > c.Interval/2 {
		h.errs.addWithOther(h.path("jitter"), h.path("interval"), "%v is more than half of the interval, %v", c.Jitter, c.Interval)
	}
	h.duration("start-delay", c.StartDelay, 0, maxStartDelay)
	if c.SlowStart != 0 {
		h.duration("slow-start", c.SlowStart, minSlowStart, maxSlowStart)
	}
	h.passive()
	h.limit(h.path("rise"), uint64(c.Rise), 1, maxHealthCount)
	h.limit(h.path("fall"), uint64(c.Fall), 1, maxHealthCount)
	if c.Panic != nil && *c.Panic > 100 {
		h.add("panic", "%d is out of range 0 to 100", *c.Panic)
	}
}

// duration checks a time. It writes the path only if that is wrong: there may be many services.
func (h healthValidation) duration(field string, d, least, most Duration) {
	if d < least || d > most {
		h.add(field, "%v is not from %v to %v", d, least, most)
	}
}

// shared refuses a field that changes weights if a group's directors would not do that together: rings
// must depend only on what all directors share, and what one director finds out by itself is not shared.
func (h healthValidation) shared(field string) {
	d := &h.config.Director
	switch {
	case d.Store.Etcd.Given() && h.index >= h.own: // all directors of the group have it
	case d.Store.Etcd.Given():
		h.errs.addWithOther(h.path(field), "director.store.etcd", "needs a service that the group shares, in a set (weir apply): this one is this director's alone, which has a group")
	case len(d.Group) > 0:
		h.errs.addWithOther(h.path(field), "director.group", "needs director.store.etcd, and a service in a set there: directors of a group change weights together")
	}
}

func (h healthValidation) passive() {
	p := h.check.Passive
	if p == nil {
		return
	}
	for field, rate := range map[string]*uint32{"refused": p.Refused, "overflows": p.Overflows} {
		if rate != nil && *rate > maxPassiveRate {
			h.add("passive."+field, "%d is out of range 0 to %d", *rate, maxPassiveRate)
		}
	}
	if p.Floor < 1 || p.Floor > 99 {
		h.add("passive.floor", "%d is out of range 1 to 99", p.Floor)
	}
	h.duration("passive.pace", p.Pace, minPassivePace, maxPassivePace)
}

// passiveInService refuses what no agent would report: agents report through etcd, and only for gue.
func (h healthValidation) passiveInService() {
	if h.check.Passive == nil {
		return
	}
	switch d := &h.config.Director; {
	case !h.service.Checked():
	case h.service.PacketMode() != GUE:
		h.errs.addWithOther(h.path("passive"), servicePath(h.index, "mode"), "is for mode gue, of whose backends agents report")
	case len(d.Interfaces) > 0 && len(d.Group) == 0 && !d.Store.Etcd.Given():
		h.errs.addWithOther(h.path("passive"), "director.store.etcd", "needs director.store.etcd: agents report there")
	default:
		h.shared("passive")
	}
}

// sections refuses keys of another kind of check: they are a mistake. A check that is switched off
// may have any keys.
func (h healthValidation) sections() {
	c := h.check
	for _, section := range []struct {
		name  string
		given bool
		of    []CheckKind
	}{
		{"http", c.HTTP != nil, []CheckKind{CheckHTTP, CheckHTTPS}},
		{"tls", c.TLS != nil, []CheckKind{CheckHTTPS, CheckTLS, CheckGRPC, CheckSMTP}},
		{"grpc", c.GRPC != nil, []CheckKind{CheckGRPC}},
		{"udp", c.UDP != nil, []CheckKind{CheckUDP}},
		{"dns", c.DNS != nil, []CheckKind{CheckDNS}},
		{"smtp", c.SMTP != nil, []CheckKind{CheckSMTP}},
		{"exec", len(c.Exec) > 0, []CheckKind{CheckExec}},
	} {
		if !section.given || c.Kind == CheckNone || slices.Contains(section.of, c.Kind) {
			continue
		}
		kinds := make([]string, len(section.of))
		for n, kind := range section.of {
			kinds[n] = string(kind)
		}
		h.errs.addWithOther(h.path(section.name), h.path("kind"), "is for kind %s, and this one is %s",
			strings.Join(kinds, " or "), c.Kind)
	}
}

// port checks that every backend has a port to probe.
func (h healthValidation) port() {
	s := h.service
	for j := range s.Backends {
		if s.ProbePort(&s.Backends[j]) == 0 {
			h.errs.addWithOther(h.path("port"), servicePath(h.index, "port"),
				"is required: the service has port %s, and a check goes to one", s.Port)
			return
		}
	}
}

// sctp checks that a check of SCTP is of a service of SCTP.
func (h healthValidation) sctp() {
	if h.check.Kind == CheckSCTP && h.service.Protocol != SCTP {
		h.errs.addWithOther(h.path("kind"), servicePath(h.index, "protocol"), "sctp is for services of protocol sctp")
	}
}

func (h healthValidation) http() {
	c := h.check.HTTP
	if c == nil {
		return
	}
	if c.Version != "" && !slices.ContainsFunc(httpVersionNames.list, func(n name[HTTPVersion]) bool { return n.value == c.Version }) {
		h.add("http.version", "%q is not a version of HTTP", string(c.Version))
	}
	h.request("http", &c.HealthRequest)
	if len(c.Requests) > maxHealthRequests {
		h.add("http.requests", "has %d requests, more than %d", len(c.Requests), maxHealthRequests)
	}
	for i := range c.Requests {
		h.request(fmt.Sprintf("http.requests[%d]", i), &c.Requests[i])
	}
	if len(c.Requests) == 0 {
		return
	}
	for _, own := range []struct {
		name  string
		given bool
	}{{"path", c.Path != ""}, {"body", c.Body != ""}, {"body-regexp", c.BodyRegexp != ""}, {"digest", c.Digest != ""}} {
		if own.given {
			h.errs.addWithOther(h.path("http."+own.name), h.path("http.requests"), "is of one request, and http.requests has several: give it in each of them")
		}
	}
}

// request checks one request.
func (h healthValidation) request(at string, c *HealthRequest) {
	if c.Method != "" && !slices.Contains(httpMethods, c.Method) {
		h.add(at+".method", "%q is not one of %s", c.Method, strings.Join(httpMethods, ", "))
	}
	if c.Path != "" && (c.Path[0] != '/' || notGraphic(c.Path)) {
		h.add(at+".path", "%q does not begin with / or has white space in it", c.Path)
	}
	if notGraphic(c.Host) || strings.ContainsAny(c.Host, "/@?#") {
		h.add(at+".host", "%q is not a name, with or without a port", c.Host)
	}
	for n, r := range c.Status {
		if r.First < 100 || r.Last > 599 || r.Last < r.First {
			h.add(at+".status", "%d to %d, the range number %d, are not HTTP status codes", r.First, r.Last, n+1)
		}
	}
	if c.Method == "CONNECT" && c.Path != "" && c.Path != "/" {
		h.errs.addWithOther(h.path(at+".path"), h.path(at+".method"), "is not sent: CONNECT names a host and a port alone, those of http.host")
	}
	for _, looked := range []struct {
		name  string
		given bool
	}{{"body", c.Body != ""}, {"body-regexp", c.BodyRegexp != ""}, {"digest", c.Digest != ""}} {
		if looked.given && (c.Method == "HEAD" || c.Method == "CONNECT") {
			h.errs.addWithOther(h.path(at+"."+looked.name), h.path(at+".method"), "cannot be looked for: an answer to %s has no body", c.Method)
		}
	}
	if _, err := regexp.Compile(c.BodyRegexp); err != nil {
		h.add(at+".body-regexp", "%v", err)
	}
	if c.Digest != "" {
		if read := new(Digest); read.UnmarshalText([]byte(c.Digest)) != nil {
			h.add(at+".digest", "%v", read.UnmarshalText([]byte(c.Digest)))
		}
	}
	for _, text := range []struct{ name, text string }{{"path", c.Path}, {"host", c.Host}, {"body", c.Body}, {"body-regexp", c.BodyRegexp}} {
		h.text(at+"."+text.name, len(text.text))
	}
}

func (h healthValidation) smtp() {
	c := h.check
	if c.SMTP == nil {
		return
	}
	if notGraphic(c.SMTP.Helo) {
		h.add("smtp.helo", "%q is not a name", c.SMTP.Helo)
	}
	h.text("smtp.helo", len(c.SMTP.Helo))
	if c.SMTP.StartTLS && c.TLS == nil {
		h.errs.addWithOther(h.path("tls"), h.path("smtp.starttls"), "is required with smtp.starttls: the certificate's name (tls: {name: mail.example.org}), or tls.skip-verify: true")
	}
}

// tls checks that a certificate can be verified: hardly any can be by an address alone.
func (h healthValidation) tls() {
	c := h.check
	if t := c.TLS; t != nil {
		if notGraphic(t.Name) || strings.ContainsAny(t.Name, "/@?#*") {
			h.add("tls.name", "%q is not a name", t.Name)
		}
		if t.CA != "" && t.SkipVerify {
			h.errs.addWithOther(h.path("tls.ca"), h.path("tls.skip-verify"), "is not looked at with skip-verify")
		}
		if problem := caProblem(t.CA); problem != "" {
			h.add("tls.ca", "%s", problem)
		}
	}
	needs := c.Kind == CheckTLS || c.Kind == CheckHTTPS || (c.Kind == CheckGRPC || c.Kind == CheckSMTP) && c.TLS != nil
	if !needs || c.TLS != nil && c.TLS.SkipVerify {
		return
	}
	nameless := c.ServerName() == ""
	if c.HTTP != nil {
		nameless = slices.ContainsFunc(c.HTTP.All(), func(r HealthRequest) bool { return c.ServerNameFor(r.Host) == "" })
	}
	if nameless {
		h.add("tls.name", "is required: the name that the certificate has to be for; or tls.skip-verify: true")
	}
}

// ServerName returns the name that a server is asked for in a TLS handshake.
func (c *HealthCheck) ServerName() string {
	if c.HTTP == nil {
		return c.ServerNameFor("")
	}
	return c.ServerNameFor(c.HTTP.Host)
}

// ServerNameFor returns the same before a request to a host.
func (c *HealthCheck) ServerNameFor(host string) string {
	if c.TLS != nil && c.TLS.Name != "" {
		return c.TLS.Name
	}
	return hostName(host)
}

// hostName is the name in what a request calls its host; empty: it is an IPv6 address.
func hostName(host string) string {
	name, port, found := strings.Cut(host, ":")
	if found && strings.Contains(port, ":") {
		return "" // an IPv6 address
	}
	return name
}

func caProblem(text string) string {
	rest, certificates := []byte(text), 0
	for {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			return "has a " + block.Type + ", and takes certificates only"
		}
		if _, err := x509.ParseCertificate(block.Bytes); err != nil {
			return "has a certificate that cannot be read: " + err.Error()
		}
		certificates++
	}
	switch {
	case text != "" && certificates == 0:
		return "has no PEM certificate (-----BEGIN CERTIFICATE-----)"
	case strings.TrimSpace(string(rest)) != "":
		return "has something after its last certificate"
	}
	return ""
}

// texts bounds the texts that are sent to every backend, and looked for in its answers.
func (h healthValidation) texts() {
	c := h.check
	if c.GRPC != nil {
		h.text("grpc.service", len(c.GRPC.Service))
	}
	if c.UDP != nil {
		h.text("udp.send", len(c.UDP.Send))
		h.text("udp.expect", len(c.UDP.Expect))
	}
}

func (h healthValidation) text(field string, length int) {
	if length > maxHealthText {
		h.add(field, "has %d bytes, more than %d", length, maxHealthText)
	}
}

func (h healthValidation) dns() {
	c := h.check
	switch {
	case c.DNS == nil && c.Kind == CheckDNS:
		h.add("dns", "is required: a name that the server answers for (dns: {name: example.org})")
	case c.DNS == nil:
	case !isDNSName(c.DNS.Name):
		h.add("dns.name", "%q is not a domain name", c.DNS.Name)
	}
}

// isDNSName reports whether the text can be queried: labels of 1 to 63 bytes, 253 bytes in all (RFC
// 1035, section 2.3.4), or the root.
func isDNSName(text string) bool {
	if text == "." {
		return true
	}
	text = strings.TrimSuffix(text, ".")
	for label := range strings.SplitSeq(text, ".") {
		if label == "" || len(label) > 63 || notGraphic(label) {
			return false
		}
	}
	return len(text) <= 253
}

func notGraphic(text string) bool {
	return strings.ContainsFunc(text, func(r rune) bool { return r > unicode.MaxASCII || !unicode.IsGraphic(r) || unicode.IsSpace(r) })
}
