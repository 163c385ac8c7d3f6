package main

import (
	"fmt"
	"os"

	"weir.io/weir/internal/bfd"
	"weir.io/weir/internal/doctor"
	"weir.io/weir/internal/model"
)

// examineBFD looks at what the BFD sessions of a configuration need of this host. The director
// tells their state.
func examineBFD(c *model.Config) []doctor.Finding {
	sessions := c.BFDSessions(nil)
	if len(sessions) == 0 {
		return nil
	}
	var findings []doctor.Finding
	ports := map[uint16]bool{}
	for i := range sessions {
		findings = append(findings, examineWay(&sessions[i])...)
		ports[bfd.Port(sessions[i].Multihop)] = true
	}
	for port := range ports {
		if who, is := stranger(holdersOf("udp", port)); is {
			findings = append(findings, doctor.Finding{Level: doctor.Fail, Check: "bfd", Text: fmt.Sprintf("UDP port %d is held by %v", port, who),
				Fix: "end it, or keep its BFD off: a host has one BFD daemon for an address"})
		}
	}
	return findings
}

// examineWay looks at one session.
func examineWay(s *model.BFDSession) []doctor.Finding {
	found := func(level doctor.Level, fix, format string, args ...any) []doctor.Finding {
		return []doctor.Finding{{Level: level, Check: "bfd", Text: fmt.Sprintf("neighbor %v: ", s.Neighbor) + fmt.Sprintf(format, args...), Fix: fix}}
	}
	if a := s.Authentication; a != nil {
		if err := bfd.CheckPassword(a); err != nil {
			return found(doctor.Fail, "put the key on the first line of a file that root can read", "%v", err)
		}
		if info, err := os.Stat(a.PasswordFile); err == nil && info.Mode().Perm()&othersRead != 0 {
			return found(doctor.Warn, "chmod o= "+a.PasswordFile, "everybody on this host can read its key in %s", a.PasswordFile)
		}
		return nil
	}
	if s.Multihop && s.TTLSecurity == 0 {
		return found(doctor.Warn, "give it ttl-security or authentication", "over several hops, packets in its name may come from anywhere")
	}
	return nil
}
