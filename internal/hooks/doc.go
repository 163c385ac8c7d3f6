// Package hooks tells programs and servers which VIPs a director forwards, by calling each of them
// until it has taken the current state. For example, a hook sets a route through a cloud's API
// where no router speaks BGP.
package hooks
