package workmanager

import (
	"context"
	"fmt"
	"strings"

	"github.com/turnlane/turnlane/internal/rpcerr"
	turnlanev1 "github.com/turnlane/turnlane/proto/turnlane/v1"
)

// GetWorkerState returns what a worker's handler keeps, as it was stored last: of a running worker that
// may be a moment ago.
func (m *Manager) GetWorkerState(ctx context.Context, req *turnlanev1.GetWorkerStateRequest) (*turnlanev1.GetWorkerStateResponse, error) {
	w, err := m.find(ctx, req.GetWorker())
	if err != nil {
		return nil, err
	}
	data, err := m.store.Load(ctx, w.GetId())
	if err != nil {
		return nil, rpcerr.From(fmt.Errorf("read the state of worker %s: %w", w.GetId(), err))
	}
	resp := &turnlanev1.GetWorkerStateResponse{State: map[string][]byte{}}
	for key, value := range data.State {
		if strings.HasPrefix(key, req.GetPrefix()) {
			resp.State[strings.ToValidUTF8(key, "�")] = value
		}
	}
	return resp, nil
}
