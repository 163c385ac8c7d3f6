package main

import (
	"fmt"
	"os"
	"strings"
	"time"

	"weir.io/weir/internal/api"
	"weir.io/weir/internal/config"
	"weir.io/weir/internal/model"
	"weir.io/weir/kube/controller"
	"weir.io/weir/kube/pool"
	"weir.io/weir/kube/translate"
)

// settings are the controller's file.
type settings struct {
	Class        string           `json:"class"`
	WithoutClass bool             `json:"without-class"`      // Services without a class, too
	Gateways     string           `json:"gateway-controller"` // the controllerName of its GatewayClasses
	Owner        string           `json:"owner"`              // of the set that it writes
	Mode         model.Mode       `json:"mode"`
	SNAT         *bool            `json:"snat"`
	Backends     translate.Target `json:"backends"`
	NodeHealth   bool             `json:"node-health"`
	Zone         string           `json:"zone"` // of the directors
	MTU          uint16           `json:"mtu"`  // of the paths to backends
	PodWeights   *bool            `json:"pod-weights"`
	Quota        controller.Quota `json:"quota"`  // of each namespace that quotas do not name
	Quotas       []quota          `json:"quotas"` // of namespaces
	Lease        lease            `json:"lease"`
	Pools        []pool.Pool      `json:"pools"`
	Directors    []director       `json:"directors"`
}

// quota is the quota of one namespace.
type quota struct {
	Namespace    string `json:"namespace"`
	Services     uint64 `json:"services"`
	Backends     uint64 `json:"backends"`
	SourceRanges uint64 `json:"source-ranges"`
	RingMemory   uint64 `json:"ring-memory"`
}

type lease struct {
	Namespace string         `json:"namespace"`
	Name      string         `json:"name"`
	Duration  model.Duration `json:"duration"`
}

// director is where a director is asked: at a socket of this host, or over TCP.
type director struct {
	Socket    string `json:"socket"`
	Server    string `json:"server"`
	CA        string `json:"ca"`
	Cert      string `json:"cert"`
	Key       string `json:"key"`
	TokenFile string `json:"token-file"`
}

const (
	defaultClass = "weir.io/weir"
	defaultOwner = "kube"
	// defaultGateways is the controllerName of GatewayClasses.
	defaultGateways = "weir.io/gateway"
	defaultLease    = 15 * time.Second
	shortLease      = 2 * time.Second
	// Between what IPv6 needs inside the longest tunnel header, and jumbo frames.
	minMTU, maxMTU = 1280 + 52, 9216
	ownerFile      = "file" // the owner of a director's own file
)

func loadSettings(path string) (*settings, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("configuration: %w", err)
	}
	return parseSettings(path, text)
}

func parseSettings(name string, text []byte) (*settings, error) {
	snat, weights := true, true
	s := &settings{Class: defaultClass, Owner: defaultOwner, Gateways: defaultGateways, Mode: model.NAT, SNAT: &snat, PodWeights: &weights, Backends: translate.Nodes,
		Lease: lease{Namespace: "weir-system", Name: "weir-kube", Duration: model.Duration(defaultLease)}}
	if err := config.Decode(name, text, s, s.check); err != nil {
		return nil, err
	}
	return s, nil
}

// check returns what is wrong with the values.
func (s *settings) check() (errs model.FieldErrors) {
	add := func(path, format string, args ...any) {
		errs = append(errs, model.FieldError{Path: path, Problem: fmt.Sprintf(format, args...)})
	}
	if why := s.options().Check(); why != "" {
		add("mode", "%s", why)
	}
	if s.MTU != 0 && (s.MTU < minMTU || s.MTU > maxMTU) {
		add("mtu", "%d is out of range %d to %d", s.MTU, minMTU, maxMTU)
	}
	if err := model.CheckOwner(s.Owner); err != nil {
		add("owner", "%v", err)
	} else if s.Owner == ownerFile {
		add("owner", "%q is the director's own file's", s.Owner)
	}
	if !strings.Contains(strings.Trim(s.Gateways, "/"), "/") {
		add("gateway-controller", "%q is not a domain and a path (weir.io/gateway)", s.Gateways)
	}
	if time.Duration(s.Lease.Duration) < shortLease {
		add("lease.duration", "is less than %s, in which the API server may not answer", shortLease)
	}
	named := map[string]int{}
	for i, q := range s.Quotas {
		path := fmt.Sprintf("quotas[%d].namespace", i)
		if first, dup := named[q.Namespace]; q.Namespace == "" {
			add(path, "is required")
		} else if dup {
			add(path, "%q is already that of quotas[%d]", q.Namespace, first)
		}
		named[q.Namespace] = i
	}
	errs = append(errs, pool.Check(s.Pools)...)
	for i, d := range s.Directors {
		path := fmt.Sprintf("directors[%d]", i)
		switch {
		case (d.Socket == "") == (d.Server == ""):
			add(path, "has to have either socket or server")
		case d.Socket != "" && d.CA+d.Cert+d.Key+d.TokenFile != "":
			add(path, "ca, cert, key and token-file are for server")
		}
	}
	return errs
}

func (s *settings) options() translate.Options {
	return translate.Options{Mode: s.Mode, SNAT: *s.SNAT, Backends: s.Backends, NodeHealth: s.NodeHealth, Zone: s.Zone, MTU: s.MTU,
		NoAgents: "agents are told of what DirectorGroups forward, and not of what the directors of the controller's file do"}
}

// quotas returns the quotas of namespaces.
func (s *settings) quotas() controller.Quotas {
	q := controller.Quotas{Each: s.Quota, Of: map[string]controller.Quota{}}
	for _, one := range s.Quotas {
		q.Of[one.Namespace] = controller.Quota{Services: one.Services, Backends: one.Backends, SourceRanges: one.SourceRanges, RingMemory: one.RingMemory}
	}
	return q
}

// clients returns the clients of the directors.
func (s *settings) clients() ([]*controller.Director, error) {
	var list []*controller.Director
	for i, d := range s.Directors {
		if d.Socket != "" {
			list = append(list, &controller.Director{Name: d.Socket, Client: api.NewClient(d.Socket)})
			continue
		}
		client, err := api.NewRemoteClient(api.RemoteOptions{URL: d.Server, CA: d.CA, Cert: d.Cert, Key: d.Key, TokenFile: d.TokenFile})
		if err != nil {
			return nil, fmt.Errorf("directors[%d]: %w", i, err)
		}
		list = append(list, &controller.Director{Name: d.Server, Client: client})
	}
	return list, nil
}
