package main

import (
	"context"
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/turnlane/turnlane"
)

// version is what "turnlane version" tells.
type version struct {
	Version string `json:"version"`
	Commit  string `json:"commit,omitempty"`
	Go      string `json:"go"`
	OS      string `json:"os"`
	Arch    string `json:"arch"`
}

func (a *app) versionCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "version [flags]",
		Short:   "Print the version",
		Example: "  turnlane version -o json",
		Args:    arguments(),
	}
	asJSON := outputFlag(cmd.Flags())
	return a.verb(cmd, func(context.Context, *cobra.Command, []string) error {
		v := thisVersion()
		if asJSON() {
			return a.printJSON(v)
		}
		text := "turnlane " + v.Version
		if v.Commit != "" {
			text += " (" + v.Commit + ")"
		}
		_, err := fmt.Fprintf(a.stdout, "%s %s %s/%s\n", text, v.Go, v.OS, v.Arch)
		return err
	})
}

func thisVersion() version {
	v := version{Version: turnlane.Version, Go: runtime.Version(), OS: runtime.GOOS, Arch: runtime.GOARCH}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return v
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			v.Commit = s.Value[:min(len(s.Value), 12)]
		}
	}
	return v
}
