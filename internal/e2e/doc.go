// Package e2e is the tests of whole processes: the real binary, killed with SIGKILL, stopped, and
// started again on what it left.
package e2e
