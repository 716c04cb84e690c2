package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/turnlane/turnlane/grouping"
)

// routed is the slot of a key as -o json tells it.
type routed struct {
	Key       string `json:"key"`
	Hash      string `json:"hash"`
	Slot      uint32 `json:"slot"`
	GroupSize uint32 `json:"group_size"`
}

func (a *app) routeCommand() *cobra.Command {
	size := numberFlag{min: 1, max: grouping.MaxSize}
	cmd := &cobra.Command{
		Use:   "route --group-size N KEY… [flags]",
		Short: "Print the hash and the slot of routing keys",
		Long: `Prints for each key its hash, in eight hexadecimal digits, and its slot in a group of that size. The
routing key of an event is its subject, or its id if it has none; its bytes count as they are. No
server is asked: the rule is the same everywhere, for ever.`,
		Example: `  turnlane route --group-size 3 BTC-USD ETH-USD
  turnlane route --group-size 4 ATL -o json`,
		Args: arguments("KEY…"),
	}
	cmd.Flags().Var(&size, "group-size", "number of slots in the group, 1 to 1024 (required)")
	asJSON := outputFlag(cmd.Flags())
	return a.verb(cmd, func(_ context.Context, _ *cobra.Command, args []string) error {
		if size.n == 0 {
			return usagef("--group-size is missing: the number of slots in the group, 1 to %d", grouping.MaxSize)
		}
		for _, key := range args {
			hash := grouping.Hash(key)
			slot := grouping.Slot(hash, uint32(size.n))
			var err error
			if asJSON() {
				err = a.printJSON(routed{key, fmt.Sprintf("%08x", hash), slot, uint32(size.n)})
			} else {
				_, err = fmt.Fprintf(a.stdout, "%08x  %d  %s\n", hash, slot, printable(key))
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}
