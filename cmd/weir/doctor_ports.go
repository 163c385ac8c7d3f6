package main

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// holder is a process that has a port.
type holder struct {
	pid  int
	name string // as /proc/PID/comm has it
}

// String is the holder's name in findings.
func (h holder) String() string {
	if h.pid == 0 {
		return "a process that cannot be seen from here"
	}
	return fmt.Sprintf("%s (process %d)", h.name, h.pid)
}

// holdersOf returns the processes that have a port of this network namespace: "udp" sockets that
// are bound, "tcp" sockets that listen. It reads the tables of /proc/net (proc_net(5)), and needs
// root to find the sockets' processes.
func holdersOf(protocol string, port uint16) []holder {
	sockets := map[string]bool{}
	for _, table := range []string{protocol, protocol + "6"} {
		socketsIn("/proc/thread-self/net/"+table, protocol == "tcp", port, sockets)
	}
	if len(sockets) == 0 {
		return nil
	}
	var holders []holder
	links, _ := filepath.Glob("/proc/[0-9]*/fd/*") // its only error is a bad pattern
	seen := map[int]bool{}
	for _, link := range links {
		to, err := os.Readlink(link)
		if err != nil || !sockets[to] {
			continue // the process has ended meanwhile, or it is another file
		}
		parts := strings.Split(link, "/")
		pid, err := strconv.Atoi(parts[2])
		if err != nil || seen[pid] {
			continue
		}
		seen[pid] = true
		name, _ := os.ReadFile("/proc/" + parts[2] + "/comm") // no name: the process has ended meanwhile
		holders = append(holders, holder{pid, strings.TrimSpace(string(name))})
	}
	if holders == nil {
		holders = []holder{{}}
	}
	return holders
}

// socketsIn adds the sockets of a table that have the port, as /proc/PID/fd names them.
func socketsIn(table string, listening bool, port uint16, sockets map[string]bool) {
	const listen = "0A"
	file, err := os.Open(table)
	if err != nil {
		return // the kernel has no IPv6
	}
	defer file.Close()
	want := fmt.Sprintf(":%04X", port)
	for lines := bufio.NewScanner(file); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if len(fields) < 10 || !strings.HasSuffix(fields[1], want) || listening && fields[3] != listen {
			continue
		}
		sockets["socket:["+fields[9]+"]"] = true
	}
}

// stranger returns the process that has a port that weir does not have: each may have it at its own
// addresses.
func stranger(holders []holder) (h holder, is bool) {
	if len(holders) == 0 || slices.ContainsFunc(holders, func(h holder) bool { return h.name == "weir" }) {
		return holder{}, false
	}
	return holders[0], true
}
