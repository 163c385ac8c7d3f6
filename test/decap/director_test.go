package decap

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"testing"

	"weir.io/weir/internal/datapath"
	"weir.io/weir/internal/model"
	"weir.io/weir/lab/netlab"
)

// The director is a separate process, because a datapath works in its process's network namespace.
// pinVariable tells this test's binary to be the director.
const pinVariable = "WEIR_TEST_DIRECTOR_PIN"

func TestMain(m *testing.M) {
	pin := os.Getenv(pinVariable)
	if pin == "" {
		os.Exit(m.Run())
	}
	if err := direct(pin); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// direct reads a table from stdin, forwards until stdin ends, and prints its counters.
func direct(pin string) error {
	stdin := json.NewDecoder(os.Stdin)
	var table model.Table
	if err := stdin.Decode(&table); err != nil {
		return fmt.Errorf("read the table: %w", err)
	}
	weir, err := datapath.Open(datapath.Options{Pin: pin, Mode: model.XDPNative})
	if err != nil {
		return err
	}
	if err := weir.Set(table); err != nil {
		return err
	}
	fmt.Println("forwarding")
	if _, err := io.Copy(io.Discard, os.Stdin); err != nil {
		return err
	}
	status, err := weir.Status()
	if err != nil {
		return err
	}
	for _, reason := range status.Reasons {
		if reason.Packets > 0 {
			fmt.Println(reason.Name, reason.Packets)
		}
	}
	if err := weir.Close(); err != nil {
		return err
	}
	return datapath.Detach(pin)
}

// forward makes the host a director until the test ends.
func forward(t *testing.T, host *netlab.Host, table model.Table) {
	t.Helper()
	director := host.Command(context.Background(), os.Args[0])
	director.Env = append(os.Environ(), pinVariable+"="+host.BPFFS()+"/weir")
	director.Stderr = os.Stderr
	stdin, err := director.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := director.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := director.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		stdin.Close()
		counters, err := io.ReadAll(stdout)
		if t.Failed() {
			t.Logf("the director counted:\n%s(%v)", counters, err)
		}
		if err := director.Wait(); err != nil {
			t.Error("the director ended:", err)
		}
	})
	if err := json.NewEncoder(stdin).Encode(table); err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Fscanln(stdout, new(string)); err != nil {
		t.Fatal("the director does not forward:", err)
	}
}
