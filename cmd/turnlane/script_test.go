package main

import (
	"encoding/json"
	"errors"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"turnlane": main})
}

// patience is how long a script waits for something that has to come. It is no measure of speed.
const patience = time.Minute

// The scripts run the real binary against a real server. Besides the commands of package testscript
// they have
//
//	ready FILE      waits for a server's ready file, and makes it the server of the verbs
//	sigterm FILE    sends SIGTERM to the server of a ready file
//	draining FILE   waits until the server of a ready file takes no connections any more
func TestScript(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		Setup:               setupFlights,
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){
			"ready": cmdReady, "sigterm": cmdSigterm, "draining": cmdDraining,
		},
	})
}

// setupFlights sets FLIGHTS to the file of 20,000 real flights, and puts the first 2,000 of them into
// flights.jsonl.
func setupFlights(env *testscript.Env) error {
	path, err := filepath.Abs("../../examples/flights/data/flights.cloudevents.jsonl.gz")
	if err != nil {
		return err
	}
	env.Setenv("FLIGHTS", path)
	source, err := openLines(path, nil)
	if err != nil {
		return err
	}
	defer source.Close()
	var some []byte
	for range 2000 {
		line, err := source.next()
		if err != nil {
			return err
		}
		some = append(append(some, line...), '\n')
	}
	return os.WriteFile(filepath.Join(env.WorkDir, "flights.jsonl"), some, 0o600)
}

func cmdReady(ts *testscript.TestScript, neg bool, args []string) {
	r := readReady(ts, neg, args)
	ts.Setenv("TURNLANE_ADDR", r.GRPC)
	ts.Setenv("HTTP", r.HTTP)
}

func cmdSigterm(ts *testscript.TestScript, neg bool, args []string) {
	ts.Check(syscall.Kill(readReady(ts, neg, args).PID, syscall.SIGTERM))
}

func cmdDraining(ts *testscript.TestScript, neg bool, args []string) {
	r := readReady(ts, neg, args)
	for deadline := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		conn, err := net.Dial("tcp", r.GRPC)
		if err != nil {
			return
		}
		conn.Close()
		if time.Now().After(deadline) {
			ts.Fatalf("the server still takes connections")
		}
	}
}

// readReady waits for a ready file.
func readReady(ts *testscript.TestScript, neg bool, args []string) (r ready) {
	if neg || len(args) != 1 {
		ts.Fatalf("want the name of a ready file")
	}
	path := ts.MkAbs(args[0])
	for deadline := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		text, err := os.ReadFile(path)
		if err == nil {
			ts.Check(json.Unmarshal(text, &r))
			return r
		}
		if !errors.Is(err, os.ErrNotExist) || time.Now().After(deadline) {
			ts.Fatalf("the server is not ready: %v", err)
		}
	}
}
