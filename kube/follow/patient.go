package follow

import (
	"context"
	"errors"
	"io"
	"net"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
)

// askAgain is the pause before an API server that is away is asked again; it may be up to twice as
// long. A client of Kubernetes asks less and less often, down to once a minute. Each follower would
// then learn at another time that the API server is back, and until all know, directors would send
// connections to pods that agents know nothing of.
const askAgain = 500 * time.Millisecond

// patient asks a source again while no API server is there to answer. What an API server answers,
// even that it is busy, is left to the caller.
func patient(source *cache.ListWatch, resource string) *cache.ListWatch {
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			return answered(ctx, resource, func() (runtime.Object, error) { return source.ListWithContext(ctx, options) })
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			return answered(ctx, resource, func() (watch.Interface, error) { return source.WatchWithContext(ctx, options) })
		},
	}
}

// sayAgain is how often the log says that no API server answers.
const sayAgain = time.Minute

// answered asks until an API server answers or the context ends. It logs that none answers.
func answered[A any](ctx context.Context, resource string, ask func() (A, error)) (A, error) {
	var said time.Time
	for {
		answer, err := ask()
		if err == nil || !isNobodyThere(err) {
			return answer, err
		}
		if time.Since(said) > sayAgain {
			utilruntime.HandleErrorWithContext(ctx, err, "The API server cannot be reached: asking until it is", "resource", resource)
			said = time.Now()
		}
		select {
		case <-ctx.Done():
			return answer, err
		case <-time.After(wait.Jitter(askAgain, 1)):
		}
	}
}

// isNobodyThere reports whether no API server has answered. A load balancer in front of API servers
// that are away may take connections, and end them or say nothing.
func isNobodyThere(err error) bool {
	var at *net.OpError
	if errors.As(err, &at) && (at.Op == "dial" || at.Op == "read" || at.Op == "write") {
		return true
	}
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout() && !errors.Is(err, context.DeadlineExceeded) ||
		errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
}
