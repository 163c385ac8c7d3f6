package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"weir.io/weir/lab/netlab"
)

// kubelet is the kubelet of one node, and the scheduler. Pods of the cluster are hosts of the lab,
// on which it starts the program that stands for the image of a pod's first container.
type kubelet struct {
	*lab
	programs map[string]string // by a part of the image's name
	free     []*netlab.Host
	at       map[*netlab.Host]string // the slots' addresses
	running  map[types.UID]*runningPod
}

type runningPod struct {
	host    *netlab.Host
	program *netlab.Command
}

const kubeletNode = "node1"

// newKubelet registers the node, with room for this many pods.
func (l *lab) newKubelet(room int, programs map[string]string) *kubelet {
	l.t.Helper()
	k := &kubelet{lab: l, programs: programs, at: map[*netlab.Host]string{}, running: map[types.UID]*runningPod{}}
	for i := range room {
		h := l.net.Host(fmt.Sprintf("slot%d", i))
		k.at[h] = fmt.Sprintf("10.2.0.%d", 100+i)
		l.net.Link(h, l.lan, netlab.LinkOptions{XDP: true, A: []string{k.at[h] + "/24"}})
		k.free = append(k.free, h)
	}
	node, err := l.core.Nodes().Create(l.t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: kubeletNode}}, metav1.CreateOptions{})
	if err != nil {
		l.t.Fatal(err)
	}
	node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "10.2.0.11"}}
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady"}}
	if _, err := l.core.Nodes().UpdateStatus(l.t.Context(), node, metav1.UpdateOptions{}); err != nil {
		l.t.Fatal(err)
	}
	return k
}

// run makes the pods match the API server, until the context ends. If it must stop before, it
// returns why.
func (k *kubelet) run(ctx context.Context) error {
	defer func() {
		for _, p := range k.running {
			_ = p.program.Process.Kill()
			_ = p.program.Wait() // the error is that it was killed
		}
	}()
	for {
		if err := k.pass(ctx); err != nil && ctx.Err() == nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(50 * time.Millisecond): // between two looks
		}
	}
}

func (k *kubelet) pass(ctx context.Context) error {
	pods, err := k.core.Pods("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list pods: %w", err)
	}
	there := map[types.UID]bool{}
	for i := range pods.Items {
		p := &pods.Items[i]
		there[p.UID] = true
		switch {
		case p.DeletionTimestamp != nil:
			k.end(p.UID)
			now := int64(0)
			err := k.core.Pods(p.Namespace).Delete(ctx, p.Name, metav1.DeleteOptions{GracePeriodSeconds: &now})
			if err != nil && !apierrors.IsNotFound(err) {
				return fmt.Errorf("take pod %s out: %w", p.Name, err)
			}
		case k.running[p.UID] == nil:
			if err := k.start(ctx, p); err != nil {
				return fmt.Errorf("start pod %s/%s: %w", p.Namespace, p.Name, err)
			}
		}
	}
	for uid := range k.running {
		if !there[uid] {
			k.end(uid)
		}
	}
	return nil
}

func (k *kubelet) end(uid types.UID) {
	p := k.running[uid]
	if p == nil {
		return
	}
	_ = p.program.Process.Kill()
	_ = p.program.Wait() // the error is that it was killed
	delete(k.running, uid)
	k.free = append(k.free, p.host)
}

// start binds a pod to the node, runs its program, and writes that it is ready.
func (k *kubelet) start(ctx context.Context, p *corev1.Pod) error {
	if len(k.free) == 0 {
		return errors.New("there is no room for it")
	}
	h := k.free[0]
	container := &p.Spec.Containers[0]
	program := ""
	for name, path := range k.programs {
		if strings.Contains(container.Image, name) {
			program = path
		}
	}
	if program == "" {
		return nil // as if the image could not be pulled
	}
	if p.Spec.NodeName == "" {
		binding := &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Name: p.Name, Namespace: p.Namespace}, Target: corev1.ObjectReference{Kind: "Node", Name: kubeletNode}}
		if err := k.core.Pods(p.Namespace).Bind(ctx, binding, metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("bind it: %w", err)
		}
	}
	dir := filepath.Join(h.Dir(), p.Name)
	mounts, err := k.mount(ctx, p, container, dir)
	if apierrors.IsNotFound(err) {
		return nil // a Secret or ConfigMap that it mounts is not there yet
	}
	if err != nil {
		return err
	}
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		return err
	}
	defer log.Close()
	var args []string
	for _, a := range container.Args {
		args = append(args, mounts.Replace(a))
	}
	cmd := h.Command(context.Background(), program, args...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Env = os.Environ()
	for _, e := range container.Env {
		value := mounts.Replace(e.Value)
		if from := e.ValueFrom; from != nil && from.FieldRef != nil {
			value = map[string]string{"metadata.name": p.Name, "metadata.namespace": p.Namespace, "status.podIP": k.at[h]}[from.FieldRef.FieldPath]
		}
		cmd.Env = append(cmd.Env, e.Name+"="+value)
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	k.free = k.free[1:]
	k.running[p.UID] = &runningPod{h, cmd}
	return k.ready(ctx, p, k.at[h])
}

// mount writes the Secrets and ConfigMaps that the container mounts, and returns a replacer of
// mount paths by the files' place.
func (k *kubelet) mount(ctx context.Context, p *corev1.Pod, container *corev1.Container, dir string) (*strings.Replacer, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	var pairs []string
	for _, v := range p.Spec.Volumes {
		data, items, err := k.volume(ctx, p.Namespace, &v)
		if err != nil {
			return nil, err
		}
		to := filepath.Join(dir, v.Name)
		if err := os.MkdirAll(to, 0o700); err != nil {
			return nil, err
		}
		for key, text := range data {
			name := key
			for _, i := range items {
				if i.Key == key {
					name = i.Path
				}
			}
			if err := os.WriteFile(filepath.Join(to, name), text, 0o600); err != nil {
				return nil, err
			}
		}
		for _, m := range container.VolumeMounts {
			if m.Name == v.Name {
				pairs = append(pairs, m.MountPath, to)
			}
		}
	}
	return strings.NewReplacer(pairs...), nil
}

func (k *kubelet) volume(ctx context.Context, namespace string, v *corev1.Volume) (data map[string][]byte, items []corev1.KeyToPath, err error) {
	switch {
	case v.Secret != nil:
		s, err := k.core.Secrets(namespace).Get(ctx, v.Secret.SecretName, metav1.GetOptions{})
		if err != nil {
			return nil, nil, err
		}
		return s.Data, v.Secret.Items, nil
	case v.ConfigMap != nil:
		c, err := k.core.ConfigMaps(namespace).Get(ctx, v.ConfigMap.Name, metav1.GetOptions{})
		if err != nil {
			return nil, nil, err
		}
		data = map[string][]byte{}
		for key, text := range c.Data {
			data[key] = []byte(text)
		}
		return data, v.ConfigMap.Items, nil
	}
	return nil, nil, nil // a token, which no program here needs
}

func (k *kubelet) ready(ctx context.Context, p *corev1.Pod, address string) error {
	now := metav1.Now()
	status := corev1.PodStatus{Phase: corev1.PodRunning, StartTime: &now, HostIP: "10.2.0.11", PodIP: address, PodIPs: []corev1.PodIP{{IP: address}}}
	for _, kind := range []corev1.PodConditionType{corev1.PodScheduled, corev1.PodInitialized, corev1.ContainersReady, corev1.PodReady} {
		status.Conditions = append(status.Conditions, corev1.PodCondition{Type: kind, Status: corev1.ConditionTrue, LastTransitionTime: now})
	}
	patch, err := json.Marshal(map[string]any{"status": status})
	if err != nil {
		return err
	}
	_, err = k.core.Pods(p.Namespace).Patch(ctx, p.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
