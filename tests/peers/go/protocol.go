package main

import (
	"errors"
	"runtime/debug"
	"time"

	"golang.org/x/sys/unix"
)

// Servers is what the driver opens.
type Servers struct {
	URLs       []string `json:"urls"`
	ClientName string   `json:"client_name"`
	Sentinel   *struct {
		Addresses []string `json:"addresses"`
		Service   string   `json:"service"`
		Password  string   `json:"password"`
	} `json:"sentinel"`
	LeaseMS   int64 `json:"lease_ms"`
	TimeoutMS int64 `json:"timeout_ms"`
}

func (s *Servers) lease() time.Duration   { return time.Duration(s.LeaseMS) * time.Millisecond }
func (s *Servers) timeout() time.Duration { return time.Duration(s.TimeoutMS) * time.Millisecond }

// Library is one library on the servers of the driver.
type Library interface {
	Open(*Servers) error
	// Lock waits without a limit if wait is negative, and makes one attempt if it is zero. The error is errBusy if the lock is
	// still held by others.
	Lock(kind, name string, wait time.Duration) (Hold, error)
	// Write appends to a list, on an ordinary connection of the library's client.
	Write(key, entry string) error
}

// Hold is one acquired lock.
type Hold interface {
	// Lost is why the library believes that the hold is over, without asking a server. The time is zero if unknown.
	Lost() (reason string, validUntil time.Time)
	// Done is closed at a loss; nil if the library has no such event.
	Done() <-chan struct{}
	// Unlock returns errLost if the lock was certainly not held.
	Unlock() error
}

var (
	errBusy = errors.New("busy")
	errLost = errors.New("not held")
)

type answer map[string]any

type command struct {
	Servers
	ID     int64    `json:"id"`
	Op     string   `json:"op"`
	Thread int      `json:"thread"`
	Kind   string   `json:"kind"`
	Names  []string `json:"names"`
	WaitMS *int64   `json:"wait_ms"`
	MS     int64    `json:"ms"`
	Key    string   `json:"key"`
	Entry  string   `json:"entry"`
}

var base = time.Now()
var baseNanos = monotonic()

func monotonic() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		panic(err)
	}
	return ts.Nano()
}

func nanosOf(t time.Time) int64 { return baseNanos + int64(t.Sub(base)) }

func version(module string) string {
	info, _ := debug.ReadBuildInfo()
	for _, dep := range info.Deps {
		if dep.Path == module {
			return dep.Version
		}
	}
	return "unknown"
}

func outcome(err error) answer {
	switch {
	case err == nil:
		return answer{"ok": true}
	case errors.Is(err, errBusy):
		return answer{"busy": true}
	case errors.Is(err, errLost):
		return answer{"lost": err.Error()}
	}
	return answer{"error": err.Error()}
}
