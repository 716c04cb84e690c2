// Package archtest is the tests that hold the shape of the code and of its documents: which package
// may import which, that each says what it is for, and that what the documents name exists.
package archtest
