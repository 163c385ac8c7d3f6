package site

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"weir.io/weir/kube/test/cluster"
)

// ServicePort is the port of all Services.
const ServicePort = 80

// MakeService makes a Service of the pods of an app, at an address, and returns when the request
// began.
func (s *Site) MakeService(ctx context.Context, name, app string, at netip.Addr, change ...func(*corev1.Service)) (time.Time, error) {
	class := Class
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{"weir.io/addresses": at.String()}},
		Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, LoadBalancerClass: &class, Selector: map[string]string{"app": app},
			Ports: []corev1.ServicePort{{Name: "http", Port: ServicePort, TargetPort: intstr.FromString("http")}}}}
	for _, f := range change {
		f(service)
	}
	began := time.Now()
	if _, err := s.Core.Services(Namespace).Create(ctx, service, metav1.CreateOptions{}); err != nil {
		return began, fmt.Errorf("make Service %s: %w", name, err)
	}
	return began, nil
}

// DeleteService deletes a Service, and waits until the router has no route to its address and no
// claim to it is left.
func (s *Site) DeleteService(ctx context.Context, name string, at netip.Addr) error {
	if err := s.Core.Services(Namespace).Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
		return fmt.Errorf("delete Service %s: %w", name, err)
	}
	return cluster.Until(ctx, "the address of Service "+name+" to be free", func() error {
		hops, err := s.NextHops(at)
		if err != nil || len(hops) > 0 {
			return fmt.Errorf("the router sends to %v (%w)", hops, err)
		}
		if _, err := s.Networking.IPAddresses().Get(ctx, at.String(), metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			return fmt.Errorf("it is claimed (%w)", err)
		}
		return nil
	})
}

// HasAddress waits until the status of a Service has an address.
func (s *Site) HasAddress(ctx context.Context, name string, at netip.Addr) error {
	return cluster.Until(ctx, fmt.Sprintf("Service %s to have %s in its status", name, at), func() error {
		service, err := s.Core.Services(Namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if has := service.Status.LoadBalancer.Ingress; len(has) != 1 || has[0].IP != at.String() {
			return fmt.Errorf("it says %v", has)
		}
		return nil
	})
}
