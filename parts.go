package turnlane

import (
	"context"
	"errors"
	"fmt"
	"sync"
)

// parts runs the parts of a process, each until it is stopped. The first that fails ends failed, as
// does the context that parts was made with; nothing stops by itself then, so that the order of stopping
// is the caller's.
type parts struct {
	failed context.Context
	fail   context.CancelFunc

	mu   sync.Mutex
	errs []error
}

func newParts(ctx context.Context) *parts {
	failed, fail := context.WithCancel(ctx)
	return &parts{failed: failed, fail: fail}
}

// start runs a part, and returns what stops it: stop returns after the part has.
func (p *parts) start(name string, run func(context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(p.failed))
	done := make(chan struct{})
	go func() {
		defer close(done)
		err := run(ctx)
		if err == nil && ctx.Err() == nil {
			err = errors.New("ended by itself")
		}
		if err != nil && !errors.Is(err, context.Canceled) {
			p.mu.Lock()
			p.errs = append(p.errs, fmt.Errorf("turnlane: %s: %w", name, err))
			p.mu.Unlock()
		}
		p.fail()
	}()
	return func() {
		cancel()
		<-done
	}
}

// err returns what the parts failed with.
func (p *parts) err() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return errors.Join(p.errs...)
}
