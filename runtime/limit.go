package runtime

import "sync"

// limiter bounds how many turns of one worker type are under way. Who finds it full is told, with a ring
// of its cell, when its time has come; none waits on a goroutine. The order is that of asking, and one
// that had a turn asks again behind all others.
//
// Its lock is taken under an activation's, and nothing under it.
type limiter struct {
	max int

	mu      sync.Mutex
	taken   int
	waiting int
	queue   []*activation // those whose permit is not queued any more are passed over
}

// permit is an activation's state at its limiter, guarded by the limiter's lock.
//
//	none ──take──▶ held ──give──▶ none          left: nothing is granted any more
//	  └───take──▶ queued ──▲
type permit uint8

const (
	permitNone permit = iota
	permitQueued
	permitHeld
	permitLeft
)

// take reports whether the activation may have a turn now.
func (m *limiter) take(a *activation) bool {
	if m == nil {
		return true
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	switch a.permit {
	case permitHeld:
		return true
	case permitNone:
		if m.taken < m.max {
			m.taken++
			a.permit = permitHeld
			return true
		}
		a.permit = permitQueued
		m.waiting++
		m.queue = append(m.queue, a)
	}
	return false
}

// give returns what take granted, and lets the next one on. The caller holds no lock.
func (m *limiter) give(a *activation) { m.end(a, permitNone) }

// leave is give for an activation that ends.
func (m *limiter) leave(a *activation) { m.end(a, permitLeft) }

func (m *limiter) end(a *activation, to permit) {
	if m == nil {
		return
	}
	m.mu.Lock()
	var granted *activation
	switch a.permit {
	case permitHeld:
		granted = m.passLocked()
	case permitQueued:
		m.waiting--
	case permitLeft:
		to = permitLeft
	}
	a.permit = to
	m.mu.Unlock()
	if granted != nil {
		granted.cell.Ring()
	}
}

// passLocked gives a permit that is free to the next one, or back.
func (m *limiter) passLocked() *activation {
	for len(m.queue) > 0 {
		a := m.queue[0]
		m.queue[0] = nil
		m.queue = m.queue[1:]
		if a.permit == permitQueued {
			a.permit = permitHeld
			m.waiting--
			return a
		}
	}
	m.queue = nil
	m.taken--
	return nil
}

// counts returns how many turns are under way and how many workers wait for theirs.
func (m *limiter) counts() (taken, waiting int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.taken, m.waiting
}
