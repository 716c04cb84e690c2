package gateway

import (
	"context"
	"net/http"
	"sync"
	"time"
)

// checkLimit is how long one check of readiness may take.
const checkLimit = 2 * time.Second

// Check is one condition of readiness.
type Check struct {
	Name string
	// Do returns why the process is not ready, nil if it is. It may block until its context ends.
	Do func(context.Context) error
}

// Checks are the conditions of the gateway itself: the store serves, and the fan-out gets on.
func (g *Gateway) Checks() []Check {
	return []Check{
		{"store", g.cfg.Store.Check},
		{"fanout", func(context.Context) error { return g.cfg.Hub.Ready() }},
		{"gateway", func(context.Context) error {
			if g.stopping() {
				return errShuttingDown()
			}
			return nil
		}},
	}
}

// Livez answers 200 as long as the process can answer at all.
func Livez() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, http.StatusOK, struct {
			Alive bool `json:"alive"`
		}{true})
	})
}

// Readyz answers 200 if all checks pass, else 503; either way with what each check says:
//
//	{"ready": false, "checks": {"store": "ok", "fanout": "fan-out is starting"}}
func Readyz(checks ...Check) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), checkLimit)
		defer cancel()
		said := make([]string, len(checks))
		var all sync.WaitGroup
		for i, c := range checks {
			all.Go(func() {
				said[i] = "ok"
				if err := c.Do(ctx); err != nil {
					said[i] = err.Error()
				}
			})
		}
		all.Wait()
		out := struct {
			Ready  bool              `json:"ready"`
			Checks map[string]string `json:"checks"`
		}{true, make(map[string]string, len(checks))}
		for i, c := range checks {
			out.Checks[c.Name] = said[i]
			out.Ready = out.Ready && said[i] == "ok"
		}
		code := http.StatusOK
		if !out.Ready {
			code = http.StatusServiceUnavailable
		}
		writeJSON(w, code, out)
	})
}
