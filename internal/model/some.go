package model

import (
	"fmt"
	"strings"
)

// mostNamed is how many of a list a message names: a line of a log, or of a terminal, has room for
// no more, and tables have all of them.
const mostNamed = 5

// Some writes the beginning of a list: "a, b, c, d, e and 495 more".
func Some(names []string) string {
	if more := len(names) - mostNamed; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:mostNamed], ", "), more)
	}
	return strings.Join(names, ", ")
}
