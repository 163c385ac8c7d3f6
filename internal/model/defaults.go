package model

import "time"

// The defaults of keys.
const (
	DefaultWeight     = 100
	DefaultICMPRate   = 1000 // as Linux's net.ipv4.icmp_msgs_per_sec
	DefaultServices   = 4096
	DefaultBackends   = 65536
	DefaultRingMemory = 64 << 20
	DefaultFragments  = 65536
	DefaultFlows      = 1 << 20
	DefaultUDPFlows   = 1 << 16
	DefaultFlowPort   = 6082
	DefaultBGPPort    = 179

	DefaultSourceRanges = 65536
)

// DefaultEtcdPrefix begins the keys of a group that gives no other.
const DefaultEtcdPrefix = "/weir"

// The defaults of times.
const (
	DefaultCoalesce     = Duration(50 * time.Millisecond)
	DefaultNotice       = Duration(5 * time.Second)
	DefaultSuspect      = Duration(5 * time.Second)
	DefaultRetention    = Duration(time.Minute)
	DefaultMaxRetention = Duration(24 * time.Hour)

	DefaultHoldTime    = Duration(9 * time.Second)
	DefaultRestartTime = Duration(2 * time.Minute)
)

// DefaultSNATPorts ends where Linux's default range of ephemeral ports begins
// (net.ipv4.ip_local_port_range, 32768-60999): a connection that the director's
// host itself opens from the same address can then never have a source port that
// full NAT gave to a client's connection.
var DefaultSNATPorts = PortRange{First: 1024, Last: 32767}

// NewBackend returns a backend in which every key that has a default has it. It exists because of
// the weight: 0 is a weight, so a missing one cannot be told from it afterwards.
func NewBackend() Backend {
	return Backend{Weight: DefaultWeight, State: Active}
}

// SetDefaults fills in every field that is zero and has a default, except weights, which NewBackend
// sets. A missing list becomes an empty one, so that it is written out again as [] and not null.
func (c *Config) SetDefaults() {
	d := &c.Director
	if d.XDP == "" {
		d.XDP = XDPAuto
	}
	if d.ICMPRate == 0 {
		d.ICMPRate = DefaultICMPRate
	}
	if d.SNAT.Ports == (PortRange{}) {
		d.SNAT.Ports = DefaultSNATPorts
	}
	d.Limits.setDefaults()
	d.Store.Etcd.setDefaults()
	d.Neighbor.setDefaults()
	c.Agent.Store.Etcd.setDefaults()
	if d.Interfaces == nil {
		d.Interfaces = []string{}
	}
	if c.Agent.UDPFlows == nil {
		flows := uint32(DefaultUDPFlows)
		c.Agent.UDPFlows = &flows
	}
	if c.Services == nil {
		c.Services = []Service{}
	}
	if c.Coalesce == 0 {
		c.Coalesce = DefaultCoalesce
	}
	if c.Notice == 0 {
		c.Notice = DefaultNotice
	}
	if c.Suspect == 0 {
		c.Suspect = DefaultSuspect
	}
	c.Loads.setDefaults()
	c.BGP.setDefaults()
	c.BFD.setDefaults()
	c.setHookDefaults()
	for i := range c.Services {
		c.Services[i].Retention = Duration(c.Services[i].RetentionOrDefault())
		c.Services[i].MaxRetention = Duration(c.Services[i].MaxRetentionOrDefault())
		if h := c.Services[i].Health; h != nil {
			c.Services[i].Health = h.withDefaults()
		}
		if c.Services[i].Backends == nil {
			c.Services[i].Backends = []Backend{}
		}
		for j := range c.Services[i].Backends {
			c.Services[i].Backends[j].setDefaults()
		}
	}
}

// FlowPortOrDefault returns the port at which the group's directors tell each other of flows; 0:
// they do not.
func (d *Director) FlowPortOrDefault() uint16 {
	if d.FlowPort == nil {
		return DefaultFlowPort
	}
	return *d.FlowPort
}

// RetentionOrDefault returns how long a generation stays in the log at least.
func (s *Service) RetentionOrDefault() time.Duration {
	if s.Retention == 0 {
		return time.Duration(DefaultRetention)
	}
	return time.Duration(s.Retention)
}

// MaxRetentionOrDefault returns how long a generation stays in the log at most.
func (s *Service) MaxRetentionOrDefault() time.Duration {
	if s.MaxRetention == 0 {
		return max(time.Duration(DefaultMaxRetention), s.RetentionOrDefault())
	}
	return time.Duration(s.MaxRetention)
}

func (b *BGP) setDefaults() {
	for i := range b.Neighbors {
		b.Neighbors[i].setDefaults()
	}
	for i := range b.Prefixes {
		if b.Prefixes[i].Announce == "" {
			b.Prefixes[i].Announce = AnnounceHosts
		}
	}
	if b.Given() && b.Neighbors == nil {
		b.Neighbors = []BGPNeighbor{}
	}
}

func (n *BGPNeighbor) setDefaults() {
	if n.Port == 0 {
		n.Port = DefaultBGPPort
	}
	if n.HoldTime == 0 {
		n.HoldTime = DefaultHoldTime
	}
	if n.RestartTime == 0 {
		n.RestartTime = DefaultRestartTime
	}
	if len(n.Families) == 0 && n.On() != "" {
		n.Families = []BGPFamily{BGPIPv4, BGPIPv6}
	}
	if len(n.Families) == 0 && n.Address.IsValid() {
		n.Families = []BGPFamily{FamilyOf(n.Address)}
	}
	if n.BFD != nil {
		timersOrDefaults(&n.BFD.Interval, &n.BFD.Multiplier)
		n.BFD.Authentication.setDefaults()
	}
}

func (e *Etcd) setDefaults() {
	if e.Given() && e.Prefix == "" {
		e.Prefix = DefaultEtcdPrefix
	}
}

func (l *Limits) setDefaults() {
	if l.Services == 0 {
		l.Services = DefaultServices
	}
	if l.Backends == 0 {
		l.Backends = DefaultBackends
	}
	if l.RingMemory == 0 {
		l.RingMemory = DefaultRingMemory
	}
	if l.Fragments == 0 {
		l.Fragments = DefaultFragments
	}
	if l.Flows == 0 {
		l.Flows = DefaultFlows
	}
	if l.SourceRanges == 0 {
		l.SourceRanges = DefaultSourceRanges
	}
}

func (b *Backend) setDefaults() {
	if b.Name == "" && b.Address.IsValid() {
		b.Name = b.Address.String()
	}
	if b.State == 0 {
		b.State = Active
	}
}
