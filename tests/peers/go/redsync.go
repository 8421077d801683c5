package main

import (
	"context"
	"errors"
	"math"
	"time"

	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
)

// Defaults but for the expiry, and for the number of attempts: without a limit instead of 32, since the driver has its own limits.
// Nothing renews a hold: Extend is the caller's.
type redsyncLibrary struct {
	goRedis
	sync  *redsync.Redsync
	lease time.Duration
}

func (l *redsyncLibrary) Open(s *Servers) error {
	if err := l.goRedis.Open(s); err != nil {
		return err
	}
	var pools []redis.Pool
	for _, client := range l.clients {
		pools = append(pools, goredis.NewPool(client))
	}
	l.sync, l.lease = redsync.New(pools...), s.lease()
	return nil
}

func (l *redsyncLibrary) Lock(_, name string, wait time.Duration) (Hold, error) {
	mutex := l.sync.NewMutex(name, redsync.WithExpiry(l.lease), redsync.WithTries(math.MaxInt32))
	var err error
	switch {
	case wait < 0:
		err = mutex.Lock()
	case wait == 0:
		err = mutex.TryLock()
	default:
		ctx, cancel := context.WithTimeout(context.Background(), wait)
		defer cancel()
		err = mutex.LockContext(ctx)
	}
	var taken *redsync.ErrTaken
	if errors.As(err, &taken) || errors.Is(err, redsync.ErrFailed) {
		return nil, errBusy
	}
	return redsyncHold{mutex}, err
}

type redsyncHold struct{ mutex *redsync.Mutex }

func (h redsyncHold) Lost() (string, time.Time) {
	until := h.mutex.Until()
	if time.Now().After(until) {
		return "Until() has passed", until
	}
	return "", until
}

func (h redsyncHold) Done() <-chan struct{} { return nil }

func (h redsyncHold) Unlock() error {
	ok, err := h.mutex.Unlock()
	var taken *redsync.ErrTaken
	switch {
	case ok:
		return nil
	case err == nil, errors.Is(err, redsync.ErrLockAlreadyExpired), errors.As(err, &taken):
		return errLost
	}
	return err
}
