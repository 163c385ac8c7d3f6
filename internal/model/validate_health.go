package model

import (
	"crypto/x509"
	"encoding/pem"
	"slices"
	"strings"
	"time"
	"unicode"
)

// The bounds on checks. A probe costs both ends something, and a count in a row past 100
// is a mistake.
const (
	minHealthInterval = Duration(10 * time.Millisecond)
	maxHealthInterval = Duration(time.Hour)
	minHealthTimeout  = Duration(time.Millisecond)
	maxHealthTimeout  = Duration(time.Minute)
	minSlowStart      = Duration(time.Second)
	maxSlowStart      = Duration(time.Hour)
	minPassivePace    = Duration(time.Second)
	maxPassivePace    = Duration(time.Hour)
	maxPassiveRate    = 1_000_000
	maxHealthCount    = 100
	maxHealthText     = 1024 // bytes of what is sent, or looked for
)

// healthValidation is the validation of one service's check.
type healthValidation struct {
	*validation
	service *Service
	index   int
}

func (v *validation) health(i int) {
	s := &v.config.Services[i]
	if s.Health == nil {
		return
	}
	h := healthValidation{v, s, i}
	h.counts()
	h.sections()
	if !slices.ContainsFunc(checkKindNames.list, func(n name[CheckKind]) bool { return n.value == s.Health.Kind }) {
		h.add("kind", "%q is not a kind of check", string(s.Health.Kind))
		return
	}
	if s.Checked() && s.Health.Kind != CheckICMP {
		h.port()
	}
	h.http()
	h.tls()
	h.texts()
	h.dns()
}

func (h healthValidation) path(field string) string { return servicePath(h.index, "health."+field) }

func (h healthValidation) add(field, format string, args ...any) {
	h.errs.add(h.path(field), format, args...)
}

func (h healthValidation) counts() {
	c := h.service.Health
	if c.Interval < minHealthInterval || c.Interval > maxHealthInterval {
		h.add("interval", "%v is not from %v to %v", c.Interval, minHealthInterval, maxHealthInterval)
	}
	if c.Timeout < minHealthTimeout || c.Timeout > maxHealthTimeout {
		h.add("timeout", "%v is not from %v to %v", c.Timeout, minHealthTimeout, maxHealthTimeout)
	}
	if c.Jitter < 0 || c.Jitter > c.Interval/2 {
		h.add("jitter", "%v is more than half of the interval, %v", c.Jitter, c.Interval)
	}
	h.slowStart()
	h.passive()
	h.limit(h.path("rise"), uint64(c.Rise), 1, maxHealthCount)
	h.limit(h.path("fall"), uint64(c.Fall), 1, maxHealthCount)
	if c.Panic != nil && *c.Panic > 100 {
		h.add("panic", "%d is out of range 0 to 100", *c.Panic)
	}
}

// slowStart also refuses slow starts that a group's directors would not do together: rings must
// depend only on what all directors share, and what one director finds out by itself is not shared.
func (h healthValidation) slowStart() {
	s := h.service.Health.SlowStart
	if s != 0 && (s < minSlowStart || s > maxSlowStart) {
		h.add("slow-start", "%v is not from %v to %v", s, minSlowStart, maxSlowStart)
	}
	if s != 0 && h.service.Checked() {
		h.shared("slow-start")
	}
}

// shared refuses a field that changes weights if directors would not do that together.
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

// passive also refuses what no agent would report: agents report through etcd, and only for gue.
func (h healthValidation) passive() {
	p := h.service.Health.Passive
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
	if p.Pace < minPassivePace || p.Pace > maxPassivePace {
		h.add("passive.pace", "%v is not from %v to %v", p.Pace, minPassivePace, maxPassivePace)
	}
	switch d := &h.config.Director; {
	case !h.service.Checked():
	case h.service.PacketMode() != GUE:
		h.errs.addWithOther(h.path("passive"), servicePath(h.index, "mode"), "is for mode gue, of whose backends agents report")
	case len(d.Interfaces) > 0 && len(d.Group) == 0 && !d.Store.Etcd.Given():
		h.add("passive", "needs director.store.etcd: agents report there")
	default:
		h.shared("passive")
	}
}

// sections refuses keys of another kind of check: they are a mistake. A check that is switched off
// may have any keys.
func (h healthValidation) sections() {
	c := h.service.Health
	for _, section := range []struct {
		name  string
		given bool
		of    []CheckKind
	}{
		{"http", c.HTTP != nil, []CheckKind{CheckHTTP, CheckHTTPS}},
		{"tls", c.TLS != nil, []CheckKind{CheckHTTPS, CheckTLS, CheckGRPC}},
		{"grpc", c.GRPC != nil, []CheckKind{CheckGRPC}},
		{"udp", c.UDP != nil, []CheckKind{CheckUDP}},
		{"dns", c.DNS != nil, []CheckKind{CheckDNS}},
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

func (h healthValidation) http() {
	c := h.service.Health.HTTP
	if c == nil {
		return
	}
	switch c.Method {
	case "GET", "HEAD", "OPTIONS", "":
	default:
		h.add("http.method", "%q is not GET, HEAD or OPTIONS", c.Method)
	}
	if c.Path != "" && (c.Path[0] != '/' || notGraphic(c.Path)) {
		h.add("http.path", "%q does not begin with / or has white space in it", c.Path)
	}
	if notGraphic(c.Host) || strings.ContainsAny(c.Host, "/@?#") {
		h.add("http.host", "%q is not a name, with or without a port", c.Host)
	}
	for n, r := range c.Status {
		if r.First < 100 || r.Last > 599 || r.Last < r.First {
			h.add("http.status", "%d to %d, the range number %d, are not HTTP status codes", r.First, r.Last, n+1)
		}
	}
	if c.Body != "" && c.Method == "HEAD" {
		h.errs.addWithOther(h.path("http.body"), h.path("http.method"), "cannot be looked for: an answer to HEAD has no body")
	}
}

// tls checks that a certificate can be verified: hardly any can be by an address alone.
func (h healthValidation) tls() {
	c := h.service.Health
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
	needs := c.Kind == CheckTLS || c.Kind == CheckHTTPS || c.Kind == CheckGRPC && c.TLS != nil
	if needs && c.ServerName() == "" && (c.TLS == nil || !c.TLS.SkipVerify) {
		h.add("tls.name", "is required: the name that the certificate has to be for; or tls.skip-verify: true")
	}
}

// ServerName returns the name that a server is asked for in a TLS handshake.
func (c *HealthCheck) ServerName() string {
	if c.TLS != nil && c.TLS.Name != "" {
		return c.TLS.Name
	}
	if c.HTTP == nil {
		return ""
	}
	name, port, found := strings.Cut(c.HTTP.Host, ":")
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
	c := h.service.Health
	check := func(field string, length int) {
		if length > maxHealthText {
			h.add(field, "has %d bytes, more than %d", length, maxHealthText)
		}
	}
	if c.HTTP != nil {
		check("http.path", len(c.HTTP.Path))
		check("http.host", len(c.HTTP.Host))
		check("http.body", len(c.HTTP.Body))
	}
	if c.GRPC != nil {
		check("grpc.service", len(c.GRPC.Service))
	}
	if c.UDP != nil {
		check("udp.send", len(c.UDP.Send))
		check("udp.expect", len(c.UDP.Expect))
	}
}

func (h healthValidation) dns() {
	c := h.service.Health
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
