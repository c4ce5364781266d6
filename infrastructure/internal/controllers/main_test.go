package controllers

import (
	"os"
	"testing"
	"time"

	"github.com/onsi/gomega"
)

// TestMain lets what comes about in another goroutine take its time on a machine
// that has much to do.
func TestMain(m *testing.M) {
	const patience = 30 * time.Second
	gomega.SetDefaultEventuallyTimeout(patience)
	os.Exit(m.Run())
}
