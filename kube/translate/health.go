package translate

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"weir.io/weir/internal/model"
	"weir.io/weir/kube/v1alpha1"
)

// text is a text of a custom resource that a type of the model parses.
type text struct {
	field, text string
	into        interface{ UnmarshalText([]byte) error }
}

// readTexts reads the texts that are given.
func readTexts(in string, list []text) error {
	for _, t := range list {
		if t.text == "" {
			continue
		}
		if err := t.into.UnmarshalText([]byte(t.text)); err != nil {
			return fmt.Errorf("%s%s: %w", in, t.field, err)
		}
	}
	return nil
}

// health returns how a ServicePolicy wants backends checked; nil: it does not say.
func health(h *v1alpha1.Health) (*model.HealthCheck, error) {
	if h == nil {
		return nil, nil
	}
	check := &model.HealthCheck{Port: uint16(h.Port), Rise: uint16(h.Rise), Fall: uint16(h.Fall)}
	if h.Panic != nil {
		percent := uint8(min(max(*h.Panic, 0), 100))
		check.Panic = &percent
	}
	texts := []text{{"kind", h.Kind, &check.Kind}, {"to", h.To, &check.To}, {"interval", duration(h.Interval), &check.Interval}, {"timeout", duration(h.Timeout), &check.Timeout}}
	if t := h.HTTP; t != nil {
		check.HTTP = &model.HealthHTTP{Method: t.Method, Path: t.Path, Host: t.Host, Body: t.Body, Status: make([]model.StatusRange, len(t.Status))}
		for i, status := range t.Status {
			texts = append(texts, text{fmt.Sprintf("http.status[%d]", i), status, &check.HTTP.Status[i]})
		}
	}
	if t := h.TLS; t != nil {
		check.TLS = &model.HealthTLS{Name: t.Name, CA: t.CA, SkipVerify: t.SkipVerify}
	}
	if t := h.GRPC; t != nil {
		check.GRPC = &model.HealthGRPC{Service: t.Service}
	}
	if t := h.UDP; t != nil {
		check.UDP = &model.HealthUDP{}
		texts = append(texts, text{"udp.send", t.Send, &check.UDP.Send}, text{"udp.expect", t.Expect, &check.UDP.Expect})
	}
	if t := h.DNS; t != nil {
		check.DNS = &model.HealthDNS{Name: t.Name, RCodes: make([]model.DNSCode, len(t.RCodes))}
		texts = append(texts, text{"dns.type", t.Type, &check.DNS.Type})
		for i, code := range t.RCodes {
			texts = append(texts, text{fmt.Sprintf("dns.rcodes[%d]", i), code, &check.DNS.RCodes[i]})
		}
	}
	if err := readTexts("spec.health.", texts); err != nil {
		return nil, err
	}
	return check, refusedHealth(check)
}

// refusedHealth says what a director would refuse in a check of any service: things that no schema
// can refuse, such as an invalid certificate.
func refusedHealth(h *model.HealthCheck) error {
	check := *h
	b := model.NewBackend()
	b.Address, b.Port = netip.AddrFrom4([4]byte{192, 0, 2, 2}), 80
	one := model.Service{Name: "any", VIP: netip.AddrFrom4([4]byte{192, 0, 2, 1}), Protocol: model.TCP, Port: model.PortRange{First: 80, Last: 80}, Mode: model.NAT, SNAT: true,
		Health: &check, Backends: []model.Backend{b}}
	c := model.Config{Services: []model.Service{one}}
	c.SetDefaults()
	var errs model.FieldErrors
	errors.As(c.Validate(), &errs)
	for _, e := range errs {
		if field, is := strings.CutPrefix(e.Path, "services[0].health."); is {
			return fmt.Errorf("spec.health.%s: %s", field, e.Problem)
		}
	}
	return nil
}
