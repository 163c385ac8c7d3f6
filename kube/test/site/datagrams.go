package site

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// Ports of datagrams: the Service's, and its pods'.
const (
	DatagramPort    = 53
	podDatagramPort = 5353
)

// WithDatagrams gives a Service an additional UDP port.
func WithDatagrams(s *corev1.Service) {
	s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: "datagrams", Protocol: corev1.ProtocolUDP, Port: DatagramPort, TargetPort: intstr.FromInt32(podDatagramPort)})
}

// AnswerDatagrams answers each datagram with the pod's name and the client that it has seen, until
// the returned function is called.
func (p *Pod) AnswerDatagrams() (end func(), err error) {
	conn, err := p.slot.host.ListenPacket("udp", fmt.Sprintf(":%d", podDatagramPort))
	if err != nil {
		return nil, fmt.Errorf("listen for datagrams of pod %s: %w", p.Name, err)
	}
	go func() {
		buffer := make([]byte, 1500)
		for {
			_, from, err := conn.ReadFrom(buffer)
			if err != nil {
				return // the socket is closed
			}
			_, _ = conn.WriteTo([]byte(p.Name+" "+from.String()), from)
		}
	}()
	return func() { conn.Close() }, nil
}

// AskDatagram sends a datagram from outside, from a port of its own, and waits for its answer.
func (s *Site) AskDatagram(ctx context.Context, vip netip.Addr) (a Answer) {
	a.Began = time.Now()
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	a.Err = s.datagram(ctx, vip, &a)
	a.Took = time.Since(a.Began)
	return a
}

func (s *Site) datagram(ctx context.Context, vip netip.Addr, a *Answer) error {
	conn, err := s.client.DialContext(ctx, "udp", netip.AddrPortFrom(vip, DatagramPort).String())
	if err != nil {
		return err
	}
	defer conn.Close()
	deadline, _ := ctx.Deadline()
	if err := conn.SetDeadline(deadline); err != nil {
		return err
	}
	if _, err := conn.Write([]byte("who")); err != nil {
		return err
	}
	buffer := make([]byte, 1500)
	n, err := conn.Read(buffer)
	if err != nil {
		return err
	}
	pod, seen, _ := strings.Cut(string(buffer[:n]), " ")
	at, err := netip.ParseAddrPort(seen)
	a.Pod, a.Seen = pod, at.Addr().Unmap()
	return err
}
