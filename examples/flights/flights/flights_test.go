package flights

import (
	"context"
	"errors"
	"strings"
	"testing"
)

func TestFlightsPass(t *testing.T) {
	for name, slow := range map[string]bool{"at full speed": false, "with a member that crawls": true} {
		t.Run(name, func(t *testing.T) {
			var out strings.Builder
			err := Run(t.Context(), Options{Out: &out, Slow: slow})
			t.Log("\n" + out.String())
			if err != nil || !strings.HasSuffix(out.String(), "flights: PASS\n") {
				t.Errorf("the run ended with %v", err)
			}
			if slow != strings.Contains(out.String(), "crawled") {
				t.Error("the slow member is shown if there is one")
			}
		})
	}
}

func TestRunEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := Run(ctx, Options{}); !errors.Is(err, context.Canceled) {
		t.Errorf("a cancelled run ended with %v", err)
	}
}
