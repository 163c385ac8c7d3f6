package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
)

// boot runs the guest until it powers itself off. Its first serial port is the kernel's console and
// goes to the log file, its second carries the tests' output and goes to line.
func (g guests) boot(version string, k kernel, initramfs, log string, line func(string)) error {
	ctx, cancel := context.WithTimeout(context.Background(), g.timeout)
	defer cancel()
	m := g.machine(version)
	command := append(k.emulator.command(m.program), m.args...)
	command = append(command,
		"-kernel", k.image(), "-initrd", initramfs,
		// A panic ends qemu instead of hanging it; an oops is one. A CPU counts as locked up after
		// two minutes, not 20 s: this host's other work may keep the guest waiting.
		// Init gets as its environment what the kernel does not know.
		"-append", fmt.Sprintf("console=%s loglevel=5 panic=-1 oops=panic watchdog_thresh=60 net.ifnames=0 PORT=%s REGISTERS=%s NICS=%s %s",
			m.console, m.port, m.registers, strings.Join(m.nics, ","), m.kernelArgs),
		"-no-reboot", "-display", "none", "-monitor", "none",
		"-serial", "file:"+log, "-serial", "stdio")
	qemu := exec.CommandContext(ctx, command[0], append(command[1:], m.cards()...)...)
	for range m.nics {
		card, end, err := newWire()
		if err != nil {
			return err
		}
		defer end()
		defer card.Close()
		qemu.ExtraFiles = append(qemu.ExtraFiles, card)
	}
	var said strings.Builder
	qemu.Stderr = os.Stderr
	if k.emulator.root != "" {
		qemu.Stderr = &said // else it warns of modules that this host's own qemu has, and of cards without a wire
	}
	// If this program is killed, the guest must not stay behind.
	qemu.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if g.nics {
		qemu.SysProcAttr.Cloneflags = syscall.CLONE_NEWNET // the card's other end is an interface there
	}
	out, err := qemu.StdoutPipe()
	if err != nil {
		return err
	}
	if err := qemu.Start(); err != nil {
		return fmt.Errorf("start qemu: %w", err)
	}
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line(strings.TrimRight(lines.Text(), "\r"))
	}
	if err := qemu.Wait(); err != nil {
		if ctx.Err() != nil {
			err = fmt.Errorf("not done after %v", g.timeout)
		}
		return fmt.Errorf("run the guest: %w\n%s%s", err, &said, tail(log))
	}
	return complaints(log)
}

// complaintBytes is how much of a complaint is shown: its first line, registers, and whose call it was.
const complaintBytes = 2000

// complaints finds a kernel's messages when a program has damaged it without a crash.
func complaints(log string) error {
	data, err := os.ReadFile(log)
	if err != nil {
		return err
	}
	text := string(data)
	for _, sign := range []string{"WARNING: ", "BUG: ", "refcount_t:", "unregister_netdevice: waiting"} {
		for rest := text; ; {
			at := strings.Index(rest, sign)
			if at < 0 {
				break
			}
			complaint := rest[at:min(at+complaintBytes, len(rest))]
			if !isOfWaiting(complaint) {
				return fmt.Errorf("the kernel complains:\n%s", complaint)
			}
			rest = rest[at+len(sign):]
		}
	}
	return nil
}

// isOfWaiting reports whether the kernel complains because this host kept the guest waiting: the
// timer by which Linux 6.8 and later let other tasks run beside real-time ones warns if it is served
// so late that it is armed already (hrtimer_forward in kernel/time/hrtimer.c).
func isOfWaiting(complaint string) bool {
	first, _, _ := strings.Cut(complaint, "\n")
	return strings.Contains(first, " hrtimer_forward+") && strings.Contains(complaint, " dl_task_timer+")
}

// tail returns the last lines of the kernel's console.
func tail(log string) string {
	data, err := os.ReadFile(log)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(data)), "\n")
	return "the end of " + log + ":\n" + strings.Join(lines[max(0, len(lines)-40):], "\n")
}
