package model

// AmongAll reports whether the service's policy places new connections on any backend. p2c does,
// except in gue: there it chooses between the two that packets can name.
func (s *Service) AmongAll() bool { return s.Policy.AmongAll() || s.Policy == P2C && s.Mode != GUE }

// AmongAll is [Service.AmongAll], for the policy in the table: a p2c that has turns.
func (s *TableService) AmongAll() bool {
	return s.Policy.AmongAll() || s.Policy == P2C && len(s.Ring.Turns) > 0
}
