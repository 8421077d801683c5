package main

import (
	"context"
	"errors"
	"time"

	"github.com/bsm/redislock"
)

// LinearBackoff(100 ms), as in the library's own example. Nothing renews a hold, and only a server knows whether a hold is valid.
type redislockLibrary struct {
	goRedis
	locks *redislock.Client
	lease time.Duration
}

// Without a deadline, Obtain gives up after the lease.
const noLimit = 24 * time.Hour

func (l *redislockLibrary) Open(s *Servers) error {
	if err := l.goRedis.Open(s); err != nil {
		return err
	}
	l.locks, l.lease = redislock.New(l.clients[0]), s.lease()
	return nil
}

func (l *redislockLibrary) Lock(_, name string, wait time.Duration) (Hold, error) {
	options := &redislock.Options{RetryStrategy: redislock.LinearBackoff(100 * time.Millisecond)}
	if wait == 0 {
		options = nil
	}
	if wait <= 0 {
		wait = noLimit
	}
	ctx, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	lock, err := l.locks.Obtain(ctx, name, l.lease, options)
	if errors.Is(err, redislock.ErrNotObtained) || errors.Is(err, context.DeadlineExceeded) {
		return nil, errBusy
	}
	return redislockHold{lock}, err
}

type redislockHold struct{ lock *redislock.Lock }

func (h redislockHold) Lost() (string, time.Time) { return "", time.Time{} }
func (h redislockHold) Done() <-chan struct{}     { return nil }

func (h redislockHold) Unlock() error {
	err := h.lock.Release(context.Background())
	if errors.Is(err, redislock.ErrLockNotHeld) {
		return errLost
	}
	return err
}
