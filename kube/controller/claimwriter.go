package controller

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	networkingv1client "k8s.io/client-go/kubernetes/typed/networking/v1"

	"weir.io/weir/kube/pool"
	"weir.io/weir/kube/translate"
)

// managedBy is the value of the label ipaddress.kubernetes.io/managed-by of weir's claims.
const managedBy = "weir.io"

// forget is how long the claim writer remembers that an address belongs to another holder.
const forget = time.Minute

// claimWriter has the holders of each address. An address is claimed by an object of kind IPAddress with
// the address as its name: there can be only one, and only a process that has read it can replace
// it. So two processes never give an address to two Services that cannot share it, whatever they
// have not seen of each other. The claim writer remembers what this process has written and not yet read
// back.
type claimWriter struct {
	client networkingv1client.IPAddressInterface

	mu      sync.Mutex
	seen    map[netip.Addr]claim
	made    map[netip.Addr]claim
	gone    map[netip.Addr]bool
	foreign map[netip.Addr]foreign
	changed map[netip.Addr]bool // since news was last asked for
}

type foreign struct {
	claim
	until time.Time
}

func newClaimWriter(client networkingv1client.IPAddressInterface) *claimWriter {
	return &claimWriter{client: client, seen: map[netip.Addr]claim{}, made: map[netip.Addr]claim{}, gone: map[netip.Addr]bool{},
		foreign: map[netip.Addr]foreign{}, changed: map[netip.Addr]bool{}}
}

// see takes in the claim that was read for an address; without read there is none.
func (w *claimWriter) see(a netip.Addr, c claim, read bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.changed[a] = true
	if !read {
		delete(w.seen, a)
		delete(w.gone, a)
		return
	}
	w.seen[a] = c
	if m, is := w.made[a]; is && !c.before(m) {
		delete(w.made, a)
	}
	if f, is := w.foreign[a]; is && !c.before(f.claim) {
		delete(w.foreign, a)
	}
}

// news returns the addresses whose holders may have changed since it was last called.
func (w *claimWriter) news(now time.Time) map[netip.Addr]pool.Holders {
	w.mu.Lock()
	defer w.mu.Unlock()
	for a, f := range w.foreign {
		if now.After(f.until) {
			delete(w.foreign, a)
			w.changed[a] = true
		}
	}
	news := make(map[netip.Addr]pool.Holders, len(w.changed))
	for a := range w.changed {
		news[a] = w.of(a)
	}
	clear(w.changed)
	return news
}

// of returns the holders of an address. A released claim that is still read has an empty holder: the
// address is taken, but will soon be free.
func (w *claimWriter) of(a netip.Addr) pool.Holders {
	if made, is := w.made[a]; is {
		return made.holders
	}
	if f, is := w.foreign[a]; is {
		return f.holders
	}
	if w.gone[a] {
		return pool.Holders{{}}
	}
	return w.seen[a].holders
}

// note changes what is remembered about an address.
func (w *claimWriter) note(a netip.Addr, f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.changed[a] = true
	f()
}

// claimed is the outcome of claims.
type claimed struct {
	taken map[pool.Share]string // claims that could not be made, and why
	err   error                 // why the claims have to be tried again
}

// make claims addresses, several at a time.
func (w *claimWriter) make(ctx context.Context, claims pool.Claims) claimed {
	result := claimed{taken: map[pool.Share]string{}}
	var mu sync.Mutex
	result.err = each(slices.Collect(maps.Keys(claims)), func(address netip.Addr) error {
		w.mu.Lock()
		had := w.of(address)
		w.mu.Unlock()
		made, err := w.claim(ctx, address, claims[address], len(had) > 0)
		if err == nil {
			w.note(address, func() { w.made[address] = made })
			return nil
		}
		var other *foreignError
		isForeign := errors.As(err, &other)
		if isForeign {
			w.note(address, func() { w.foreign[address] = foreign{claim: other.claim, until: time.Now().Add(forget)} })
		}
		mu.Lock()
		defer mu.Unlock()
		var errs []error
		for _, h := range claims[address] {
			// A Service that has the address already, and wants other ports of it, must not lose it
			// because the API server does not answer.
			if _, has := had.Of(h.Service); !has || isForeign {
				result.taken[pool.Share{Address: address, Service: h.Service}] = err.Error()
			}
			errs = append(errs, fmt.Errorf("claim %s for %s: %w", address, h.Service, err))
		}
		return errors.Join(errs...)
	})
	return result
}

// claim makes or changes the object that names the holders of an address. If an object says the same
// already, this process or an earlier one made it.
func (w *claimWriter) claim(ctx context.Context, address netip.Addr, holders pool.Holders, known bool) (none claim, err error) {
	if !known {
		a := &networkingv1.IPAddress{
			ObjectMeta: metav1.ObjectMeta{Name: address.String(), Labels: map[string]string{networkingv1.LabelManagedBy: managedBy}},
			Spec:       networkingv1.IPAddressSpec{ParentRef: parentRef(holders[0].Service)},
		}
		if err := write(a, holders); err != nil {
			return none, err
		}
		made, err := w.client.Create(ctx, a, metav1.CreateOptions{})
		if err == nil {
			return claim{holders: holders, version: made.ResourceVersion}, nil
		}
		if !apierrors.IsAlreadyExists(err) {
			return none, err
		}
	}
	there, err := w.client.Get(ctx, address.String(), metav1.GetOptions{})
	if err != nil {
		return none, err
	}
	has := claimOf(there)
	by := there.Labels[networkingv1.LabelManagedBy]
	unlabelled := by == "" && has.isOf(holders) // the label was removed from a claim of weir's
	if unlabelled {
		by = managedBy
	}
	want, changed, refused := has.with(holders, by)
	switch {
	case refused != nil:
		return none, refused
	case !changed && (!unlabelled || has.newer):
		return has, nil
	}
	return w.replace(ctx, there, want)
}

// replace writes the holders of an address, unless its object has changed since it was read.
func (w *claimWriter) replace(ctx context.Context, there *networkingv1.IPAddress, holders pool.Holders) (none claim, err error) {
	there = there.DeepCopy()
	metav1.SetMetaDataLabel(&there.ObjectMeta, networkingv1.LabelManagedBy, managedBy)
	if err := write(there, holders); err != nil {
		return none, err
	}
	made, err := w.client.Update(ctx, there, metav1.UpdateOptions{})
	if err != nil {
		return none, err
	}
	return claim{holders: holders, version: made.ResourceVersion}, nil
}

// release removes claims that are not needed, once the API server itself says so about their
// Services: what was read some time ago is not enough.
func (c *Controller) release(ctx context.Context, shares []pool.Share) error {
	of := map[netip.Addr][]pool.Service{}
	for _, s := range shares {
		if c.claims.known(s.Address) {
			of[s.Address] = append(of[s.Address], s.Service)
		}
	}
	return each(slices.Collect(maps.Keys(of)), func(a netip.Addr) error {
		var errs []error
		for _, owner := range of[a] { // one by one: each replaces what the one before has written
			if err := c.releaseOne(ctx, a, owner); err != nil {
				errs = append(errs, fmt.Errorf("release %s of %s: %w", a, owner, err))
			}
		}
		return errors.Join(errs...)
	})
}

// known reports whether there is a claim of an address that was not released yet.
func (w *claimWriter) known(a netip.Addr) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	_, read := w.seen[a]
	return read && !w.gone[a]
}

func (c *Controller) releaseOne(ctx context.Context, a netip.Addr, owner pool.Service) error {
	judge := c.judgeService
	switch owner.Kind {
	case pool.Gateway:
		judge = c.judgeGateway
	case pool.LoadBalancer:
		judge = c.judgeBalancer
	}
	if err := judge(ctx, owner); err != nil {
		return err
	}
	there, err := c.addresses.Get(ctx, a.String(), metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	has := claimOf(there)
	if _, is := has.holders.Of(owner); !is || there.Labels[networkingv1.LabelManagedBy] != managedBy {
		return nil
	}
	if has.newer {
		return errNewerClaim
	}
	if rest := has.holders.Without(owner); len(rest) > 0 {
		made, err := c.claims.replace(ctx, there, rest)
		if err != nil {
			return err
		}
		c.claims.note(a, func() { c.claims.made[a] = made })
		c.log.Info("a Service shares an address no more", "address", a, "service", owner.String())
		return nil
	}
	precondition := metav1.Preconditions{UID: &there.UID, ResourceVersion: &there.ResourceVersion}
	err = c.addresses.Delete(ctx, a.String(), metav1.DeleteOptions{Preconditions: &precondition})
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	c.claims.note(a, func() {
		c.claims.gone[a] = true
		delete(c.claims.made, a)
	})
	c.log.Info("released an address", "address", a, "service", owner.String())
	return nil
}

// errTooOld is why no address of an owner that may want it is released.
var errTooOld = errors.New("what was read of its owner is too old to judge by")

// errNewerClaim is why a claim stays that is not needed here.
var errNewerClaim = errors.New("a newer version of weir has written the claim, and it says more than is known here; it stays until that version runs again")

// judgeService returns no error if the API server confirms what was read of a Service.
func (c *Controller) judgeService(ctx context.Context, owner pool.Service) error {
	now, err := c.core.Services(owner.Namespace).Get(ctx, owner.Name, metav1.GetOptions{})
	if err != nil {
		return ignoreNotFound(err)
	}
	if read := c.cache.service(owner); c.isOurs(now) && (read == nil || !sameWish(read, now)) {
		return errTooOld
	}
	return nil
}

func ignoreNotFound(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// sameWish reports whether two versions of a Service ask for the same addresses.
func sameWish(a, b *corev1.Service) bool {
	x, _ := translate.Wants(a)
	y, _ := translate.Wants(b)
	return x.Pool == y.Pool && x.Key == y.Key && fmt.Sprint(x.Wanted, x.Families, x.Ports) == fmt.Sprint(y.Wanted, y.Families, y.Ports)
}
