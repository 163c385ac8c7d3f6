// Package bgp tells routers which VIPs this director forwards. A [Speaker] keeps a session with
// each neighbor of the configuration and tells it the routes that it is set to. It does not keep
// what routers announce, because a director forwards to its backends by the host's own routes.
//
// Messages are read and written by gobgp's packet package. The sessions are weir's own:
// docs/decisions/bgp.md says why.
package bgp
