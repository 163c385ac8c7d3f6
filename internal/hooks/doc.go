// Package hooks tells programs and servers which VIPs a director forwards, by calling each
// of them until it has taken what is true now. It is what sets a route through a cloud's API
// where no router speaks BGP.
package hooks
