package main

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"maps"
	"slices"
	"unicode/utf8"

	"github.com/spf13/cobra"

	turnlanev1 "github.com/turnlane/turnlane/proto/turnlane/v1"
)

// stateView is one key of a worker's state as -o json tells it.
type stateView struct {
	Key         string   `json:"key"`
	Value       verbatim `json:"value,omitempty"`
	ValueBase64 *[]byte  `json:"value_base64,omitempty"` // of a value that is no JSON
}

func (a *app) workerStateCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "state WORKER [PREFIX] [flags]",
		Short: "Print what a worker's handler keeps",
		Long: `Prints the keys of a worker's state, those that begin with PREFIX, and their values, as they were
stored last. With -o json a value that is JSON stands as it is in value, and others in value_base64.`,
		Example: `  turnlane worker state sums-0
  turnlane worker state sums-0 sum/ -o json | jq -c '[.key, .value]'`,
		Args: arguments("WORKER", "[PREFIX]"),
	}
	asJSON := outputFlag(cmd.Flags())
	return a.verb(cmd, func(ctx context.Context, _ *cobra.Command, args []string) error {
		c, err := a.dial()
		if err != nil {
			return err
		}
		defer c.Close()
		req := &turnlanev1.GetWorkerStateRequest{Worker: args[0]}
		if len(args) > 1 {
			req.Prefix = args[1]
		}
		resp, err := c.Workers.GetWorkerState(ctx, req)
		if err != nil {
			return c.Explain(err)
		}
		keys := slices.Sorted(maps.Keys(resp.GetState()))
		if asJSON() {
			for _, key := range keys {
				if err := a.printJSON(viewState(key, resp.GetState()[key])); err != nil {
					return err
				}
			}
			return nil
		}
		t := a.newTable("KEY", "VALUE")
		for _, key := range keys {
			t.row(key, valueText(resp.GetState()[key]))
		}
		return t.end(nil)
	})
}

func viewState(key string, value []byte) stateView {
	if json.Valid(value) && utf8.Valid(value) {
		return stateView{Key: key, Value: value}
	}
	if value == nil {
		value = []byte{}
	}
	return stateView{Key: key, ValueBase64: &value}
}

// valueText is a value for a person.
func valueText(value []byte) string {
	if utf8.Valid(value) {
		return string(value)
	}
	return "base64:" + base64.StdEncoding.EncodeToString(value)
}
