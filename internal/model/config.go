package model

import (
	"cmp"
	"net/netip"
	"time"
)

// Config is everything that one director or agent is told: what the group shares (Directors,
// Services) and what belongs to this host (Director, Agent, BGP, BFD, Hooks, API).
type Config struct {
	Director  Director          `json:"director"`
	Agent     Agent             `json:"agent"`
	Directors []netip.Prefix    `json:"directors,omitempty"` // the group: agents accept tunnels from these addresses
	Coalesce  Duration          `json:"coalesce,omitzero"`   // changes within it are one generation
	Notice    Duration          `json:"notice,omitzero"`     // in a group: from a new generation to the first connection that it places
	Suspect   Duration          `json:"suspect,omitzero"`    // backends that a director loses from sight keep their connections for this long
	BGP       BGP               `json:"bgp,omitzero"`        // the routers that are told which VIPs are forwarded
	BFD       BFD               `json:"bfd,omitzero"`        // further neighbors that must learn at once when they are not
	Hooks     []Hook            `json:"hooks,omitempty"`     // the hooks that are called when VIPs come up or go
	API       API               `json:"api,omitzero"`        // the clients that may ask over TCP
	Loads     Loads             `json:"loads,omitzero"`      // how agents report loads of backends to directors
	Segments  []SegmentSettings `json:"segments,omitempty"`  // what this director knows of tenants' networks
	OVN       OVN               `json:"ovn,omitzero"`        // says where hosts of tenants' networks are
	Checks    []NamedCheck      `json:"checks,omitempty"`    // that services have by name
	Services  []Service         `json:"services"`

	FormerKeys []FormerKey    `json:"-"` // that the file has
	NamedBy    map[int]string `json:"-"` // the names of the checks that services have from Checks
}

// The defaults and the bounds of times.
const (
	DefaultCoalesce = Duration(50 * time.Millisecond)
	DefaultNotice   = Duration(5 * time.Second)
	DefaultSuspect  = Duration(5 * time.Second)
	minCoalesce     = Duration(time.Millisecond)
	maxCoalesce     = Duration(10 * time.Second)
	minNotice       = Duration(time.Millisecond)
	maxNotice       = Duration(time.Minute)
	minSuspect      = Duration(time.Millisecond)
	maxSuspect      = Duration(time.Minute)
)

// SetDefaults fills in every field that is zero and has a default, except weights, which NewBackend
// sets. A missing list becomes an empty one, so that it is written out again as [] and not null.
func (c *Config) SetDefaults() {
	c.Director.setDefaults()
	c.Agent.setDefaults()
	c.Coalesce = cmp.Or(c.Coalesce, DefaultCoalesce)
	c.Notice = cmp.Or(c.Notice, DefaultNotice)
	c.Suspect = cmp.Or(c.Suspect, DefaultSuspect)
	c.Loads.setDefaults()
	c.BGP.setDefaults()
	c.BFD.setDefaults()
	c.setHookDefaults()
	if c.Services == nil {
		c.Services = []Service{}
	}
	c.resolveChecks()
	for i := range c.Services {
		c.Services[i].setDefaults()
	}
}

// Validate returns everything that is wrong with the configuration as
// FieldErrors, or nil. It expects defaults to be set (SetDefaults).
func (c Config) Validate() error { return c.ValidateShared(len(c.Services)) }

// ValidateShared does what Validate does, for a configuration whose first own services are this
// director's; it shares the others with its group.
func (c Config) ValidateShared(own int) error {
	return c.ValidateChanged(own, func(int) bool { return false })
}

// ValidateChanged does what ValidateShared does, for services of which some are known to be valid
// by themselves: they were valid in a configuration that differs from this one only in services.
func (c Config) ValidateChanged(own int, known func(i int) bool) error {
	v := validation{config: &c, own: own}
	v.director()
	v.agent()
	v.prefixes("directors", c.Directors)
	v.duration("coalesce", c.Coalesce, minCoalesce, maxCoalesce)
	v.duration("notice", c.Notice, minNotice, maxNotice)
	v.duration("suspect", c.Suspect, minSuspect, maxSuspect)
	v.bgp()
	v.bfd()
	v.hooks()
	v.api()
	v.loads()
	v.segments()
	v.ovn()
	v.namedChecks()
	for i := range c.Services {
		if !known(i) {
			v.service(i)
		}
	}
	v.serviceNames()
	v.ports()
	v.addresses()
	v.ownAddresses()
	v.ownBackends()
	v.replies()
	v.limits()
	v.segmentLimits()
	v.quotas()
	if len(v.errs) == 0 {
		return nil
	}
	return v.errs
}
