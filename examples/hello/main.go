// Command hello is a whole server with a worker type of its own, which answers events with greetings.
// With it running:
//
//	turnlane worker create --type hello --topic names --start
//	turnlane pub names world
//	turnlane tail greetings --from earliest -n 1
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"os/signal"

	"github.com/turnlane/turnlane"
	"github.com/turnlane/turnlane/event"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	srv, err := turnlane.NewServer(turnlane.Config{})
	if err != nil {
		log.Fatal(err)
	}
	srv.HandleFunc("hello", hello)
	if err := srv.Run(ctx); err != nil {
		log.Fatal(err)
	}
}

func hello(_ context.Context, turn *turnlane.Turn) error {
	greeting := fmt.Appendf(nil, "hello, %s", turn.Event().Data)
	return turn.Publish("greetings", &turnlane.Event{
		Type: "greeting", DataContentType: "text/plain", Data: greeting, DataKind: event.TextData,
	})
}
