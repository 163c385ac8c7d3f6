package model

import (
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"time"
)

// Outdated says why a certificate is not valid at a time: it has expired, or its time has not
// begun. Nil: it is valid at that time.
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

// OutdatedCA is Outdated for a CA's certificates in PEM: if none of them is valid, it says what
// is wrong with the last one.
func OutdatedCA(text []byte, now time.Time) (err error) {
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		c, wrong := x509.ParseCertificate(block.Bytes)
		if wrong != nil {
			continue // the code that reads it says so
		}
		if err = Outdated(c, now); err == nil {
			return nil
		}
	}
	return err
}
