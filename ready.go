package turnlane

import (
	"context"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/turnlane/turnlane/gateway"
	"github.com/turnlane/turnlane/internal/client"
	"github.com/turnlane/turnlane/internal/rpcerr"
)

// readiness is the health service. Besides what health.Server has, it knows client.ReadyService, which
// is looked at when it is asked for, like /readyz.
type readiness struct {
	*health.Server
	checks []gateway.Check
}

// Check answers with an error that says what is missing when the process is not ready.
func (r readiness) Check(ctx context.Context, req *healthv1.HealthCheckRequest) (*healthv1.HealthCheckResponse, error) {
	if req.GetService() != client.ReadyService {
		return r.Server.Check(ctx, req)
	}
	for _, c := range r.checks {
		if err := c.Do(ctx); err != nil {
			return nil, rpcerr.New(codes.Unavailable, rpcerr.NotReady, "the server is not ready: "+c.Name+": "+err.Error(), map[string]string{"check": c.Name})
		}
	}
	return &healthv1.HealthCheckResponse{Status: healthv1.HealthCheckResponse_SERVING}, nil
}
