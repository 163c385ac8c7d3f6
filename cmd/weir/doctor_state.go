package main

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"time"

	"weir.io/weir/internal/doctor"
	"weir.io/weir/internal/model"
	"weir.io/weir/internal/store"
)

// etcdPatience is how long doctor waits for a group's store.
const etcdPatience = 10 * time.Second

// examineState looks at where a director keeps its state.
func examineState(s model.Store) []doctor.Finding {
	findings := []doctor.Finding{examineDirectory(stateDirectory(s))}
	if s.Etcd.Given() {
		findings = append(findings, examineEtcd(s.Etcd))
	}
	return findings
}

// examineDirectory says whether a director, which makes missing directories, could write there.
func examineDirectory(dir string) doctor.Finding {
	at := existing(dir)
	if err := writable(at); err != nil {
		return doctor.Finding{Level: doctor.Fail, Check: "state", Text: fmt.Sprintf("%s cannot be written: %v", at, err),
			Fix: "make it writable, or name another directory in director.store.directory"}
	}
	return doctor.Finding{Level: doctor.OK, Check: "state", Text: dir}
}

// examineEtcd reads the group's state once, as a director does at its start.
func examineEtcd(e model.Etcd) doctor.Finding {
	fix := "see that its members run and that director.store.etcd is right: a director that starts now uses the group's last known state"
	return askEtcd(e, fix, func(ctx context.Context, group *store.Etcd) (string, error) {
		state, err := group.Read(ctx)
		if err != nil {
			return "", err
		}
		return fmt.Sprintf("revision %d, %d services of owners %s",
			state.Revision, state.Count(), strings.Join(state.Owners(), ", ")), nil
	})
}

// examineReports asks whether an agent could report the connections of these backends.
func examineReports(s model.AgentStore, backends []netip.Addr) []doctor.Finding {
	if !s.Etcd.Given() {
		return nil
	}
	fix := "see that its members run, that agent.store.etcd is right and that its user may write these keys: directors do not learn of this host's connections"
	return []doctor.Finding{askEtcd(s.Etcd, fix, func(ctx context.Context, to *store.Etcd) (string, error) {
		if len(backends) == 0 {
			return "no backend of this host is of mode gue: there is nothing to report", to.MayReport(ctx, nil)
		}
		return fmt.Sprintf("takes reports about %d backends of this host", len(backends)), to.MayReport(ctx, backends)
	})}
}

// askEtcd asks etcd something once.
func askEtcd(e model.Etcd, fix string, ask func(context.Context, *store.Etcd) (answer string, err error)) doctor.Finding {
	finding := doctor.Finding{Level: doctor.Fail, Check: "etcd", Fix: fix}
	options := etcdOptions(e)
	options.Log = slog.New(slog.DiscardHandler)
	group, err := store.OpenEtcd(options)
	if err != nil {
		finding.Text = err.Error()
		return finding
	}
	defer group.Close()
	ctx, cancel := context.WithTimeout(context.Background(), etcdPatience)
	defer cancel()
	answer, err := ask(ctx, group)
	if err != nil {
		finding.Text = err.Error()
		return finding
	}
	return doctor.Finding{Level: doctor.OK, Check: "etcd", Text: e.Prefix + ": " + answer}
}
