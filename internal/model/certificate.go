package model

import (
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"time"
)

// Outdated says why nobody believes a certificate at a time: it has ended, or has not begun. Nil: it is
// believed as far as its time goes.
func Outdated(c *x509.Certificate, now time.Time) error {
	switch {
	case c == nil:
		return nil
	case now.After(c.NotAfter):
		return fmt.Errorf("the certificate has ended on %s", c.NotAfter.UTC().Format(time.RFC3339))
	case now.Before(c.NotBefore):
		return fmt.Errorf("the certificate begins on %s: it is too early, or this host's clock is wrong", c.NotBefore.UTC().Format(time.RFC3339))
	}
	return nil
}

// OutdatedCA is Outdated of a CA's certificates in PEM: what is wrong with the last, if no one of them
// is believed.
func OutdatedCA(text []byte, now time.Time) (err error) {
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		c, wrong := x509.ParseCertificate(block.Bytes)
		if wrong != nil {
			continue // whoever reads it says so
		}
		if err = Outdated(c, now); err == nil {
			return nil
		}
	}
	return err
}
