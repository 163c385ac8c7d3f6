package model

import "fmt"

// Move is what a change does to the slots of a service.
type Move struct {
	Service string `json:"service"` // name
	Slots   int    `json:"slots"`
	Moved   int    `json:"moved"` // have another owner than before
	Held    int    `json:"held"`  // keep an older owner until their rows have room
}

// Share is how much of a service has moved, in percent.
func (m Move) Share() string {
	if m.Slots == 0 {
		return "0.0%"
	}
	return fmt.Sprintf("%.1f%%", 100*float64(m.Moved)/float64(m.Slots))
}
