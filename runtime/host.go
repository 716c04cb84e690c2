package runtime

import (
	"errors"
	"fmt"
	"time"

	"github.com/turnlane/turnlane/actor"
	"github.com/turnlane/turnlane/internal/engine"
)

// Extend implements actor.Host.
func (t *turn) Extend(d time.Duration) error {
	most := actor.MaxTurn(t.a.policy().timeout)
	err := t.a.cell.Extend(t, d, most)
	switch {
	case errors.Is(err, engine.ErrExtended):
		return fmt.Errorf("%w: %s at most with a handler timeout of %s; split the work over several events", err, most, t.a.policy().timeout)
	case errors.Is(err, engine.ErrCancelled):
		return actor.ErrTurnClosed
	}
	return err
}

// Progress implements actor.Host.
func (t *turn) Progress(text string) { t.told.Store(&text) }

// Progress returns what the handler of a worker that runs here said last of how far its turn is; "" if it
// has no turn, or said nothing.
func (r *Runtime) Progress(worker string) string {
	a := r.activationOf(worker)
	if a == nil {
		return ""
	}
	present, ok := a.cell.Turning()
	if !ok {
		return ""
	}
	if text := present.(*turn).told.Load(); text != nil {
		return *text
	}
	return ""
}
