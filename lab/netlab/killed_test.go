package netlab

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// TestMain lets the test binary be the process that makes a lab and dies.
func TestMain(m *testing.M) {
	if os.Getenv("NETLAB_BE_KILLED") != "" {
		makeLabAndWait()
	}
	if os.Getenv("NETLAB_HOLD_SOCKETS") != "" {
		holdSockets()
	}
	os.Exit(m.Run())
}

func makeLabAndWait() {
	lab := ForTest(process{})
	a, b := lab.Host("a"), lab.Host("b")
	lab.Link(a, b, LinkOptions{})
	a.BPFFS()
	if err := a.Command(process{}.context(), "sleep", "1000").Start(); err != nil {
		process{}.Fatalf("%v", err)
	}
	fmt.Println(a.Namespace())
	select {}
}

// leave starts a process with a lab, ends it by a signal and returns the name of
// the lab's first namespace. The process stays a zombie until wait is called: the
// tests of other packages sweep too, and take the labs of processes that are gone.
func leave(t *testing.T, signal unix.Signal) (namespace string, wait func()) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), "NETLAB_BE_KILLED=1")
	cmd.Stderr = os.Stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	name, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		t.Fatalf("the other process made no lab: %v", err)
	}
	if err := cmd.Process.Signal(signal); err != nil {
		t.Fatal(err)
	}
	if err := unix.Waitid(unix.P_PID, cmd.Process.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil); err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(name), sync.OnceFunc(func() {
		err := cmd.Wait()
		if status := cmd.ProcessState.Sys().(interface{ Signal() unix.Signal }); status.Signal() != signal {
			t.Errorf("the process ended with %v, want by the signal %v", err, signal)
		}
	})
}

func TestSweepRemovesWhatAKilledProcessLeft(t *testing.T) {
	name, wait := leave(t, unix.SIGKILL)
	defer wait()
	path := filepath.Join(namespaceDir, name)
	id, err := identify(path)
	if err != nil {
		t.Fatalf("a killed process cannot have removed its namespace: %v", err)
	}
	ids := map[fileID]bool{id: true}
	if len(processesIn(ids)) != 1 {
		t.Fatalf("the killed process's own process is gone before the sweep")
	}
	wait()
	own := ForTest(t).Host("a") // which sweeps
	if left := processesIn(ids); len(left) > 0 {
		t.Errorf("processes %v still run", left)
	}
	gone(t, name)
	if _, err := os.Stat(filepath.Join(namespaceDir, own.Namespace())); err != nil {
		t.Errorf("the sweep took a living lab's namespace: %v", err)
	}
}

func TestSignalRemovesTheLab(t *testing.T) {
	for _, signal := range []unix.Signal{unix.SIGTERM, unix.SIGINT} {
		name, wait := leave(t, signal)
		gone(t, name)
		wait()
	}
}

func gone(t *testing.T, namespace string) {
	t.Helper()
	prefix, _, _ := parseName(namespace)
	for _, dir := range []string{namespaceDir, stateDir} {
		for _, name := range names(dir) {
			if strings.HasPrefix(name, prefix) {
				t.Errorf("%s/%s is still there", dir, name)
			}
		}
	}
	mounts, err := os.ReadFile("/proc/mounts")
	if err != nil || strings.Contains(string(mounts), prefix) {
		t.Errorf("something of %s is still mounted (%v)", prefix, err)
	}
}

func TestNamesOfOthersAreNotOurs(t *testing.T) {
	for name, want := range map[string]string{
		"weir-17-client": "weir-17", "weir-17.2-left-end": "weir-17.2", "weir-17": "weir-17",
		"weir-prod": "", "weir--1-a": "", "other": "", "weir-": "",
	} {
		if prefix, _, ok := parseName(name); ok != (want != "") || ok && prefix != want {
			t.Errorf("%s belongs to the lab %q (%v), want %q", name, prefix, ok, want)
		}
	}
}

func TestCloseAfterAnotherNamespaceWasMade(t *testing.T) {
	lab := ForTest(t)
	h := lab.Host("a")
	other := "weir-test-" + h.Namespace()[len(namePrefix):]
	for _, command := range []string{"add", "del"} {
		if out, err := exec.Command("ip", "netns", command, other).CombinedOutput(); err != nil {
			t.Fatalf("ip netns %s: %v: %s", command, err, out)
		}
	}
	if err := lab.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
	gone(t, h.Namespace())
}
