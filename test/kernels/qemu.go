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
func (g guests) boot(k kernel, initramfs, log string, line func(string)) error {
	ctx, cancel := context.WithTimeout(context.Background(), g.timeout)
	defer cancel()
	qemu := exec.CommandContext(ctx, "qemu-system-x86_64",
		// Without fast string operations (ERMS, FSRM) Linux copies and clears in words: qemu emulates
		// "rep movsb" byte by byte, which took half of the time.
		"-accel", "tcg,thread=single", "-cpu", "max,-erms,-fsrm", "-smp", "2", "-m", "2048",
		"-kernel", k.image(), "-initrd", initramfs,
		// A panic ends qemu instead of hanging it; an oops is one. A CPU counts as locked up after
		// two minutes, not 20 s: this host's other work may keep the guest waiting.
		"-append", "console=ttyS0 loglevel=5 no_timer_check panic=-1 oops=panic watchdog_thresh=60 net.ifnames=0", "-no-reboot",
		"-nic", "none", "-display", "none", "-monitor", "none",
		"-serial", "file:"+log, "-serial", "stdio")
	if g.host {
		qemu.Args = append(qemu.Args, "-virtfs", "local,path=/,mount_tag=host,security_model=none,readonly=on,multidevs=remap")
	}
	if g.counts {
		// One CPU: with more, the time includes the CPUs' turns.
		qemu.Args = append(qemu.Args, "-icount", "shift=0,sleep=off", "-smp", "1")
	}
	qemu.Stderr = os.Stderr
	// If this program is killed, the guest must not stay behind.
	qemu.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
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
		return fmt.Errorf("run the guest: %w\n%s", err, tail(log))
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
