package model

// The values of checks that are written as text: status codes, versions, digests, datagrams and words of DNS.

import (
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// StatusRange is one or more HTTP status codes. It is written as 200 or 200-299.
type StatusRange struct{ First, Last uint16 }

// Contains reports whether the code is one of them.
func (r StatusRange) Contains(code int) bool { return int(r.First) <= code && code <= int(r.Last) }

// String returns "200" or "200-299".
func (r StatusRange) String() string { return PortRange(r).String() }

// MarshalText writes what String returns.
func (r StatusRange) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// UnmarshalText reads what String returns.
func (r *StatusRange) UnmarshalText(text []byte) error {
	first, last, isRange := strings.Cut(string(text), "-")
	if !isRange {
		last = first
	}
	f, err := strconv.ParseUint(first, 10, 16)
	l, err2 := strconv.ParseUint(last, 10, 16)
	if err != nil || err2 != nil || f < 100 || l > 599 || l < f {
		return fmt.Errorf("%q is neither an HTTP status code (200) nor a range of them (200-299)", text)
	}
	*r = StatusRange{uint16(f), uint16(l)}
	return nil
}

// HTTPVersion is a version of HTTP.
type HTTPVersion string

// The versions of HTTP.
const (
	HTTP10 HTTPVersion = "1.0"
	HTTP11 HTTPVersion = "1.1"
	HTTP2  HTTPVersion = "2" // over TLS by ALPN, else by prior knowledge (RFC 9113, section 3.3)
)

var httpVersionNames = names[HTTPVersion]{kind: "version of HTTP", list: []name[HTTPVersion]{{HTTP10, "1.0"}, {HTTP11, "1.1"}, {HTTP2, "2"}}}

// UnmarshalText reads the name; the error lists the known ones.
func (v *HTTPVersion) UnmarshalText(text []byte) error { return httpVersionNames.read(v, text) }

// Names returns all names.
func (HTTPVersion) Names() []string { return httpVersionNames.texts() }

// Digest is the hash of a body: sha256: or md5: and hexadecimal digits. Digits alone are a hash of their
// length; those of MD5 are what keepalived's genhash prints.
type Digest string

// hashes are those that a digest may be of, and how many digits each has.
var hashes = map[string]int{"md5": 32, "sha256": 64}

// UnmarshalText reads a digest.
func (d *Digest) UnmarshalText(text []byte) error {
	hash, digits, named := strings.Cut(strings.ToLower(string(text)), ":")
	if !named {
		digits, hash = hash, ""
		for name, length := range hashes {
			if len(digits) == length {
				hash = name
			}
		}
	}
	if _, err := hex.DecodeString(digits); err != nil || hashes[hash] == 0 || len(digits) != hashes[hash] {
		return fmt.Errorf("%q is neither sha256: and 64 hexadecimal digits nor md5: and 32", text)
	}
	*d = Digest(hash + ":" + digits)
	return nil
}

// Parts returns the hash's name and its digits.
func (d Digest) Parts() (hash, digits string) {
	hash, digits, _ = strings.Cut(string(d), ":")
	return hash, digits
}

// Payload is the bytes of a datagram, written as text, or as hex: and hexadecimal digits.
type Payload string

const payloadHex = "hex:"

// String returns the text, or the digits where it cannot be printed.
func (p Payload) String() string {
	printable := utf8.ValidString(string(p)) && !strings.ContainsFunc(string(p), func(r rune) bool { return !unicode.IsPrint(r) })
	if printable && !strings.HasPrefix(string(p), payloadHex) {
		return string(p)
	}
	return payloadHex + hex.EncodeToString([]byte(p))
}

// MarshalText writes what String returns.
func (p Payload) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalText reads what String returns.
func (p *Payload) UnmarshalText(text []byte) error {
	digits, isHex := strings.CutPrefix(string(text), payloadHex)
	if !isHex {
		*p = Payload(text)
		return nil
	}
	b, err := hex.DecodeString(digits)
	if err != nil {
		return fmt.Errorf("%q is not hex: and pairs of hexadecimal digits", text)
	}
	*p = Payload(b)
	return nil
}

// DNSType is a type of DNS records, by its number (IANA). The zero value is none.
type DNSType uint16

// DNSCode is the response code of a DNS answer (RFC 1035, section 4.1.1).
type DNSCode uint8

var (
	dnsTypeNames = names[DNSType]{kind: "record type", list: []name[DNSType]{
		{1, "A"}, {2, "NS"}, {5, "CNAME"}, {6, "SOA"}, {12, "PTR"}, {15, "MX"}, {16, "TXT"}, {28, "AAAA"}, {33, "SRV"}}}
	dnsCodeNames = names[DNSCode]{kind: "response code", list: []name[DNSCode]{
		{0, "noerror"}, {1, "formerr"}, {2, "servfail"}, {3, "nxdomain"}, {4, "notimp"}, {5, "refused"}}}
)

// String returns the name that zone files use.
func (t DNSType) String() string { return dnsTypeNames.text(t) }

// MarshalText writes the name that zone files use.
func (t DNSType) MarshalText() ([]byte, error) { return []byte(t.String()), nil }

// UnmarshalText reads the name; the error lists the known ones.
func (t *DNSType) UnmarshalText(text []byte) error { return dnsTypeNames.read(t, text) }

// String returns the code's name.
func (c DNSCode) String() string { return dnsCodeNames.text(c) }

// MarshalText writes the code's name.
func (c DNSCode) MarshalText() ([]byte, error) { return []byte(c.String()), nil }

// UnmarshalText reads the name; the error lists the known ones.
func (c *DNSCode) UnmarshalText(text []byte) error { return dnsCodeNames.read(c, text) }

// Names returns all names.
func (DNSType) Names() []string { return dnsTypeNames.texts() }

// Names returns all names.
func (DNSCode) Names() []string { return dnsCodeNames.texts() }
