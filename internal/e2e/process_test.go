package e2e

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	turnlanev1 "github.com/turnlane/turnlane/proto/turnlane/v1"
)

// patience is how long a test waits for something that has to come. It is no measure of speed.
const patience = 2 * time.Minute

// binary is the program under test, and flightsBinary the example that hosts a worker type of its own; both
// are built once by TestMain.
var binary, flightsBinary string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "turnlane-e2e-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	binary = filepath.Join(dir, "turnlane")
	flightsBinary = filepath.Join(dir, "flights")
	for out, pkg := range map[string]string{binary: "cmd/turnlane", flightsBinary: "examples/flights"} {
		build := exec.Command("go", "build", "-o", out, "github.com/turnlane/turnlane/"+pkg)
		build.Stderr = os.Stderr
		if err := build.Run(); err != nil {
			fmt.Fprintln(os.Stderr, "build", pkg+":", err)
			os.Exit(1)
		}
	}
	code := m.Run()
	os.RemoveAll(dir)
	os.Exit(code)
}

// server is one `turnlane dev` process.
type server struct {
	t      *testing.T
	cmd    *exec.Cmd
	stderr *buffer
	exited chan struct{}
	err    error  // valid once exited is closed
	GRPC   string `json:"grpc"`
	HTTP   string `json:"http"`
	PID    int    `json:"pid"`
}

// startDev starts a server on free ports and returns when it is ready.
func startDev(t *testing.T, args ...string) *server {
	t.Helper()
	return start(t, binary, append([]string{"dev"}, args...)...)
}

// start is startDev for any program that takes the same flags.
func start(t *testing.T, program string, args ...string) *server {
	t.Helper()
	s := try(t, program, args...)
	select {
	case <-s.exited:
		t.Fatalf("the server ended before it was ready: %v\n%s", s.err, s.stderr)
	default:
	}
	return s
}

// tryDev is startDev for a server that may end before it is ready.
func tryDev(t *testing.T, args ...string) *server {
	t.Helper()
	return try(t, binary, append([]string{"dev"}, args...)...)
}

func try(t *testing.T, program string, args ...string) *server {
	t.Helper()
	ready := filepath.Join(t.TempDir(), "ready")
	args = append(args, "--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0", "--ready-file", ready)
	s := &server{t: t, cmd: exec.Command(program, args...), stderr: new(buffer), exited: make(chan struct{})}
	s.cmd.Stderr = s.stderr
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		s.err = s.cmd.Wait()
		close(s.exited)
	}()
	t.Cleanup(s.kill)
	eventually(t, "the server is ready", func() error {
		select {
		case <-s.exited:
			return nil
		default:
		}
		b, err := os.ReadFile(ready)
		if err != nil {
			return err
		}
		return json.Unmarshal(b, s)
	})
	if s.PID != 0 && s.PID != s.cmd.Process.Pid {
		t.Fatalf("the ready file says pid %d, the process has %d", s.PID, s.cmd.Process.Pid)
	}
	return s
}

// kill ends the process at once, as kill -9 does.
func (s *server) kill() {
	_ = s.cmd.Process.Kill()
	<-s.exited
}

// signal sends a signal to the process.
func (s *server) signal(sig syscall.Signal) {
	s.t.Helper()
	if err := s.cmd.Process.Signal(sig); err != nil {
		s.t.Fatal(err)
	}
}

// exitCode waits for the process to end.
func (s *server) exitCode() int {
	s.t.Helper()
	select {
	case <-s.exited:
	case <-time.After(patience):
		s.t.Fatalf("the server has not ended\n%s", s.stderr)
	}
	if exit, ok := errors.AsType[*exec.ExitError](s.err); ok {
		return exit.ExitCode()
	}
	return 0
}

// rssPeak returns the most memory that the process ever had, in bytes.
func (s *server) rssPeak() uint64 {
	s.t.Helper()
	f, err := os.Open(fmt.Sprintf("/proc/%d/status", s.PID))
	if err != nil {
		s.t.Fatal(err)
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if rest, ok := strings.CutPrefix(lines.Text(), "VmHWM:"); ok {
			kb, err := strconv.ParseUint(strings.Fields(rest)[0], 10, 64)
			if err != nil {
				s.t.Fatal(err)
			}
			return kb << 10
		}
	}
	s.t.Fatal("no VmHWM")
	return 0
}

// command prepares a client verb against the server.
func (s *server) command(args ...string) *exec.Cmd {
	cmd := exec.Command(binary, args...)
	cmd.Env = append(os.Environ(), "TURNLANE_ADDR="+s.GRPC)
	return cmd
}

// turnlane runs a client verb that must succeed and returns its standard output.
func (s *server) turnlane(args ...string) string {
	s.t.Helper()
	cmd := s.command(args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		s.t.Fatalf("turnlane %s: %v\n%s%s\nserver: %s", strings.Join(args, " "), err, out, &stderr, s.stderr)
	}
	return string(out)
}

// clients dials the server.
func (s *server) clients() (turnlanev1.GatewayServiceClient, turnlanev1.WorkManagerServiceClient) {
	s.t.Helper()
	conn, err := grpc.NewClient(s.GRPC, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { conn.Close() })
	return turnlanev1.NewGatewayServiceClient(conn), turnlanev1.NewWorkManagerServiceClient(conn)
}

// eventually polls until try succeeds.
func eventually(t *testing.T, what string, try func() error) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for {
		err := try()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("waiting until %s: %v", what, err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// lines decodes JSON lines.
func lines[T any](t *testing.T, text string) []T {
	t.Helper()
	var all []T
	for line := range strings.Lines(text) {
		var v T
		if err := json.Unmarshal([]byte(line), &v); err != nil {
			t.Fatalf("not a JSON line: %s: %v", line, err)
		}
		all = append(all, v)
	}
	return all
}

// inTurn checks that so many workers have a turn under way, that is, events waiting or in hand.
func inTurn(t *testing.T, workers turnlanev1.WorkManagerServiceClient, want int) error {
	t.Helper()
	list, err := workers.ListWorkers(t.Context(), &turnlanev1.ListWorkersRequest{PageSize: 1000})
	if err != nil {
		return err
	}
	busy := 0
	for _, w := range list.GetWorkers() {
		got, err := workers.GetWorker(t.Context(), &turnlanev1.GetWorkerRequest{Worker: w.GetId()})
		if err != nil {
			return err
		}
		for _, topic := range got.GetWorker().GetTopicStatus() {
			if topic.GetOwned() > 0 && topic.GetCursor() != topic.GetHead() {
				busy++
			}
		}
	}
	if busy != want {
		return fmt.Errorf("%d of %d workers are busy", busy, want)
	}
	return nil
}

// buffer is a bytes.Buffer that may be read while a process writes to it.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}
