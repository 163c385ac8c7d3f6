package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
)

// own is the version that stands for this host's kernel: no guest is booted, and the tests run in
// namespaces, under a systemd that is the first process there.
const own = "own"

// contain runs one test binary so.
func (g guests) contain(test binary, line func(string)) (err error) {
	dir, err := os.MkdirTemp("", "weir-contained-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	payload := g.payload(g.machine(own).architecture)
	places, err := test.places(payload)
	if err != nil {
		return err
	}
	tests := filepath.Join(dir, "tests", test.inGuest(0))
	if err := os.MkdirAll(tests, 0o755); err != nil {
		return err
	}
	for name, lines := range map[string][]string{"args": test.args, "host": places} {
		if err := os.WriteFile(filepath.Join(tests, name), []byte(strings.Join(lines, "\n")), 0o644); err != nil {
			return err
		}
	}
	port := filepath.Join(dir, "port")
	if err := syscall.Mkfifo(port, 0o600); err != nil {
		return fmt.Errorf("make %s: %w", port, err)
	}
	out, err := os.OpenFile(port, os.O_RDWR, 0) // also as a writer, so that it does not end with the first line
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), g.timeout)
	defer cancel()
	init, err := filepath.Abs(filepath.Join(payload, "init"))
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, init, dir)
	log, err := os.Create(filepath.Join(g.dir, own+".log"))
	if err != nil {
		return err
	}
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWUTS | syscall.CLONE_NEWIPC | syscall.CLONE_NEWNET | syscall.CLONE_NEWCGROUP,
		Pdeathsig:  syscall.SIGKILL,
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start systemd in namespaces (which takes root): %w", err)
	}
	const closing = "\x00\n"
	read := make(chan struct{})
	go func() {
		defer close(read)
		// Read to the end, however long a line is: else systemd would wait for room in the pipe.
		for lines, err := bufio.NewReader(out), error(nil); err == nil; {
			var text string
			if text, err = lines.ReadString('\n'); text == closing {
				return
			} else if text != "" {
				line(strings.TrimRight(text, "\r\n"))
			}
		}
	}()
	_ = cmd.Wait() // powered off, it is ended by a signal: the report says whether the tests came to their end
	if ctx.Err() != nil {
		err = fmt.Errorf("not done after %v", g.timeout)
	}
	if _, failed := out.WriteString(closing); failed == nil { // behind all that systemd has written
		<-read
	}
	return errors.Join(err, out.Close())
}
