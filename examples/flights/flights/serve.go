package flights

import (
	"context"

	"github.com/turnlane/turnlane"
)

// Serve runs a server that hosts the worker type until ctx ends; ready is called once it is up. Its workers
// keep their books in their state, so that the process may end at any moment.
func Serve(ctx context.Context, c turnlane.Config, ready func(*turnlane.Server) error) error {
	srv, err := turnlane.NewServer(c)
	if err != nil {
		return err
	}
	books := &ledgers{slow: func(uint32) <-chan struct{} { return nil }}
	srv.Handle(workerType, books.open)
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	failed := make(chan error, 1)
	go func() {
		select {
		case <-srv.Ready():
			if err := ready(srv); err != nil {
				failed <- err
				stop()
			}
		case <-ctx.Done():
		}
	}()
	err = srv.Run(ctx)
	select {
	case e := <-failed:
		return e
	default:
		return err
	}
}
