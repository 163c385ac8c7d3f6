package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"weir.io/weir/lab/record"
)

// reactions is the program that measures, which contains Kubernetes' client; "make bench
// SCENARIO=kubernetes" builds it, and says where Kubernetes' own programs are.
const reactions = "bin/reactions"

// Where Kubernetes' programs are.
const (
	apiserverVariable   = "WEIR_KUBE_APISERVER"
	controllersVariable = "WEIR_KUBE_CONTROLLER_MANAGER"
)

// modeVariable says how packets get to pods: nat, as in the record, gue or ipip by a DirectorGroup, or
// own, nat by directors of their own.
const modeVariable = "WEIR_KUBE_MODE"

// What is measured: see kube/test/reactions.
const (
	podReady      = "pod-ready"
	podTerminates = "pod-terminating"
	serviceMade   = "service-made"
	nodeLabelled  = "node-labelled"
	rollingUpdate = "rolling-update"
)

// takeDown is how long the program may take to remove its lab when it is told to end.
const takeDown = 30 * time.Second

var (
	requestDelay = record.Quantity{Name: "request", Unit: "ms", Better: record.Lower}
	lastDelay    = record.Quantity{Name: "last-request", Unit: "ms", Better: record.Lower}
	broken       = record.Quantity{Name: "broken", Unit: "request", Better: record.Lower}
)

func measureKubernetes(ctx context.Context, s *session) error {
	apiserver, controllers := os.Getenv(apiserverVariable), os.Getenv(controllersVariable)
	if apiserver == "" || controllers == "" {
		return fmt.Errorf("needs a kube-apiserver in $%s and a kube-controller-manager in $%s: make bench SCENARIO=kubernetes builds them", apiserverVariable, controllersVariable)
	}
	program, err := filepath.Abs(reactions)
	if err != nil {
		return fmt.Errorf("find %s: %w", reactions, err)
	}
	mode := cmp.Or(os.Getenv(modeVariable), "nat")
	args := []string{"--mode", mode, "--kube-apiserver", apiserver, "--kube-controller-manager", controllers, "--rounds", strconv.Itoa(s.settings.Rounds)}
	if s.settings.Smoke {
		args = append(args, "--smoke")
	}
	cmd := exec.CommandContext(ctx, program, args...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, s.progress
	// The program is told to end, and removes its lab.
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = takeDown
	if err := cmd.Run(); err != nil {
		return errors.Join(ctx.Err(), fmt.Errorf("run %s (make bench SCENARIO=kubernetes builds it): %w", reactions, err))
	}
	var measured record.Scenario
	if err := json.Unmarshal(out.Bytes(), &measured); err != nil {
		return fmt.Errorf("read what %s measured: %w", reactions, err)
	}
	s.into.Notes, s.into.Measurements = measured.Notes, measured.Measurements
	return nil
}

// rolledFailures is how many requests, long ones included, a rolling update broke in the worst
// round.
func rolledFailures(s *record.Scenario) (float64, error) {
	short, err1 := delayOf(rollingUpdate, failed, 1)(s)
	long, err2 := delayOf(rollingUpdate, broken, 1)(s)
	if err := errors.Join(err1, err2); err != nil {
		return math.NaN(), err
	}
	return short + long, nil
}
