package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A complaint of the kernel's is an error, also behind one that is only of a guest that had to wait.
func TestComplaints(t *testing.T) {
	const late = `[ 1096.936388] WARNING: CPU: 0 PID: 203 at kernel/time/hrtimer.c:1056 hrtimer_forward+0x7b/0xc0
[ 1098.935233] Call Trace:
[ 1099.315595]  <IRQ>
[ 1099.315873]  dl_task_timer+0x3a5/0x9e0
[ 1099.316250]  __hrtimer_run_queues+0x10d/0x250
`
	for name, row := range map[string]struct{ log, want string }{
		"nothing":                 {"[    1.0] Linux version 6.12\n", ""},
		"a late timer":            {late, ""},
		"another user of a timer": {strings.Replace(late, "dl_task_timer", "tcp_pace_kick", 1), "hrtimer.c:1056"},
		"a bug behind it":         {late + "[ 1100.0] BUG: KASAN: use-after-free in veth_xdp_rcv\n", "use-after-free"},
		"a warning behind it":     {late + strings.Repeat("x\n", complaintBytes) + "[ 1100.0] WARNING: CPU: 1 at net/core/dev.c:1 x+0x1/0x2\n", "net/core/dev.c"},
		"a device that stays":     {"[ 9.0] unregister_netdevice: waiting for wire0 to become free\n", "wire0"},
	} {
		file := filepath.Join(t.TempDir(), "log")
		if err := os.WriteFile(file, []byte(row.log), 0o600); err != nil {
			t.Fatal(err)
		}
		err := complaints(file)
		if (err != nil) != (row.want != "") || err != nil && !strings.Contains(err.Error(), row.want) {
			t.Errorf("%s: it says %v, want %q", name, err, row.want)
		}
	}
}
