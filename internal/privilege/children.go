package privilege

import (
	"os"
	"slices"
	"strings"
)

// Environment is the environment of processes that this one starts. It has nothing of the service
// manager's (sd_notify(3)), which hears of this process alone.
func Environment() []string {
	return slices.DeleteFunc(os.Environ(), func(variable string) bool {
		name, _, _ := strings.Cut(variable, "=")
		return slices.Contains([]string{"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"}, name)
	})
}
