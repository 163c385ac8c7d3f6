package model

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// FieldError is one thing that is wrong with a Config.
type FieldError struct {
	Path    string // of the field, in the names of the file: services[3].backends[0].weight
	Problem string // what is wrong with it, and what would be right
	Other   string // path of the other field when two contradict each other, else empty
	Fix     string // what the problem says to write in the field's place; empty: that is not one value
}

// Error returns the path and the problem on one line.
func (e FieldError) Error() string { return e.Path + ": " + e.Problem }

// FieldErrors is everything that is wrong with a Config.
type FieldErrors []FieldError

// Error returns one line per problem.
func (e FieldErrors) Error() string {
	lines := make([]string, len(e))
	for i, f := range e {
		lines[i] = f.Error()
	}
	return strings.Join(lines, "\n")
}

// Unwrap lets errors.As find a FieldError.
func (e FieldErrors) Unwrap() []error {
	list := make([]error, len(e))
	for i, f := range e {
		list[i] = f
	}
	return list
}

// mostProblems bounds the problems that are listed for one configuration: a small text may have a
// million services.
const mostProblems = 1000

func (e *FieldErrors) add(path, format string, args ...any) {
	e.addWithOther(path, "", format, args...)
}

func (e *FieldErrors) addWithOther(path, other, format string, args ...any) {
	if len(*e) >= mostProblems {
		return
	}
	*e = append(*e, FieldError{Path: path, Other: other, Problem: fmt.Sprintf(format, args...)})
}

// fix says what to write in the place of the field that was added last.
func (e FieldErrors) fix(text string) {
	if len(e) > 0 && len(e) < mostProblems {
		e[len(e)-1].Fix = text
	}
}

// servicePath and backendPath are called only once something is wrong: a
// configuration may have a million backends.
func servicePath(i int, field string) string { return fmt.Sprintf("services[%d].%s", i, field) }

func backendPath(i, j int, field string) string {
	return fmt.Sprintf("services[%d].backends[%d].%s", i, j, field)
}

// MaxNameLength bounds the names of services and backends, in bytes.
const MaxNameLength = 253

// validation collects the problems of one configuration.
type validation struct {
	config *Config
	own    int // the director's own services; the group's follow
	errs   FieldErrors
	inside *OwnInside // see ownInside

	wrongChecks map[string]bool // named ones with something wrong

	elsewhere bool // what is checked is in another text than the configuration
}

// nameProblem says what is wrong with the name of a service or backend. Names end up in tables,
// labels and paths, where white space and control characters would do harm.
func nameProblem(name string) string {
	switch {
	case name == "":
		return "is required"
	case len(name) > MaxNameLength:
		return "is longer than 253 bytes"
	case !utf8.ValidString(name):
		return "is not valid UTF-8"
	case strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsGraphic(r) || unicode.IsSpace(r) }):
		return "contains white space or a control character"
	}
	return ""
}

// AddressProblem says why an address cannot be a backend's, or nothing.
func AddressProblem(a netip.Addr) string { return addressProblem(a) }

// addressProblem says why packets cannot travel to an address through routers, or nothing.
func addressProblem(a netip.Addr) string {
	switch {
	case !a.IsValid():
		return "is required"
	case a.Is4In6():
		return "is an IPv4 address in IPv6 clothing; write " + a.Unmap().String()
	case a.Zone() != "":
		return "has a zone; weir takes addresses that are valid on every link"
	case a.IsUnspecified() || a.Is4() && a.As4()[0] == 0:
		return "is not the address of a host"
	case a.IsLoopback():
		return "is a loopback address, which no packet on a wire may have"
	case a.IsMulticast():
		return "is a multicast address"
	case a.IsLinkLocalUnicast():
		return "is link-local; weir takes addresses that are valid on every link"
	case a.Is4() && a.As4()[0] >= 240:
		return "is in 240.0.0.0/4, which is reserved"
	}
	return ""
}

func family(a netip.Addr) string {
	if a.Is4() {
		return "IPv4"
	}
	return "IPv6"
}

// duration checks a time that is given.
func (v *validation) duration(path string, d, least, most Duration) {
	if d != 0 && (d < least || d > most) {
		v.errs.add(path, "%v is not from %v to %v", d, least, most)
	}
}

func withAddress(a netip.Addr, problem string) string {
	if !a.IsValid() {
		return problem
	}
	return a.String() + " " + problem
}

// oneOf checks a value that must be one of those that have names.
func oneOf[T comparable](v *validation, path string, n names[T], value T) {
	if !slices.ContainsFunc(n.list, func(known name[T]) bool { return known.value == value }) {
		wrong := n.unknown(fmt.Sprint(value))
		v.errs.add(path, "%v", wrong)
		v.errs.fix(wrong.Meant)
	}
}

func (v *validation) limit(path string, value, low, high uint64) {
	if value < low || value > high {
		v.errs.add(path, "%d is out of range %d to %d", value, low, high)
	}
}

func (v *validation) interfaces(path string, names []string) {
	each(v, path, names, strconv.Quote, interfaceProblem)
}

// hosts checks addresses of hosts.
func (v *validation) hosts(path string, list []netip.Addr) {
	each(v, path, list, netip.Addr.String, func(a netip.Addr) string {
		if problem := addressProblem(a); problem != "" {
			return withAddress(a, problem)
		}
		return ""
	})
}

// each checks the elements of a list: each by itself, and that none is there twice. Errors name an
// element by its text.
func each[T comparable](v *validation, path string, list []T, text, problem func(T) string) {
	seen := make(map[T]int, len(list))
	for i, one := range list {
		at := fmt.Sprintf("%s[%d]", path, i)
		if wrong := problem(one); wrong != "" {
			v.errs.add(at, "%s", wrong)
			continue
		}
		if first, dup := seen[one]; dup {
			v.errs.addWithOther(at, fmt.Sprintf("%s[%d]", path, first), "%s is named twice", text(one))
			continue
		}
		seen[one] = i
	}
}

func (v *validation) prefixes(path string, list []netip.Prefix) {
	for i, p := range list {
		if problem := prefixProblem(p); problem != "" {
			v.errs.add(fmt.Sprintf("%s[%d]", path, i), "%s %s", prefixText(p), problem)
		}
	}
}

func covered(p netip.Prefix, by []netip.Prefix) bool {
	for _, b := range by {
		if b.IsValid() && b.Bits() <= p.Bits() && b.Contains(p.Addr()) {
			return true
		}
	}
	return false
}

func prefixProblem(p netip.Prefix) string {
	switch {
	case !p.IsValid():
		return "is not an address or prefix"
	case p.Bits() == 0:
		return "is every address there is"
	case p.Masked() != p:
		return fmt.Sprintf("has bits beyond its length; write %s, or %s for one address", p.Masked(), p.Addr())
	}
	return addressProblem(p.Addr())
}

// prefixText writes one address without its length, as a file would have it.
func prefixText(p netip.Prefix) string {
	if p.IsSingleIP() {
		return p.Addr().String()
	}
	return p.String()
}

// interfaceProblem says why an interface cannot have a name, or nothing.
func interfaceProblem(name string) string {
	switch {
	case name == "" || name == "." || name == ".." || strings.ContainsAny(name, "/: \t\n"):
		return fmt.Sprintf("%q is not a name that an interface can have", name)
	case len(name) > maxInterfaceName:
		return fmt.Sprintf("%q is longer than the %d bytes of an interface name", name, maxInterfaceName)
	}
	return ""
}

// mostNamed is how many of a list a message names: a line of a log, or of a terminal, has room for
// no more, and tables have all of them.
const mostNamed = 5

// Some writes the beginning of a list: "a, b, c, d, e and 495 more".
func Some(names []string) string {
	if more := len(names) - mostNamed; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:mostNamed], ", "), more)
	}
	return strings.Join(names, ", ")
}

// Count writes how many there are of something that takes an s: "1 host", "2 hosts".
func Count[N ~int | ~uint64](n N, of string) string {
	if n == 1 {
		return "1 " + of
	}
	return fmt.Sprintf("%d %ss", n, of)
}

// Shown is as much of a text as an error repeats of it.
func Shown(text string) string {
	const most = 100
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + "..."
}
