package main

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"
)

// Defaults but for the validity: a majority of one key, as the README asks for a single server, and NOLOOP, as it advises.
type rueidislockLibrary struct{ locker rueidislock.Locker }

func (l *rueidislockLibrary) Open(s *Servers) error {
	option := rueidis.ClientOption{}
	if s.Sentinel != nil {
		option.InitAddress = s.Sentinel.Addresses
		option.Password = s.Sentinel.Password
		option.Sentinel = rueidis.SentinelOption{MasterSet: s.Sentinel.Service}
	} else {
		parsed, err := rueidis.ParseURL(strings.TrimSuffix(s.URLs[0], "/"))
		if err != nil {
			return err
		}
		option = parsed
	}
	option.ClientName = s.ClientName
	option.ConnWriteTimeout = s.timeout()
	option.Dialer.Timeout = s.timeout()
	locker, err := rueidislock.NewLocker(rueidislock.LockerOption{
		ClientOption:   option,
		KeyValidity:    s.lease(),
		KeyMajority:    1,
		NoLoopTracking: true,
	})
	l.locker = locker
	return err
}

func (l *rueidislockLibrary) Write(key, entry string) error {
	client := l.locker.Client()
	return client.Do(context.Background(), client.B().Rpush().Key(key).Element(entry).Build()).Error()
}

func (l *rueidislockLibrary) Lock(_, name string, wait time.Duration) (Hold, error) {
	if wait == 0 {
		return held(l.locker.TryWithContext(context.Background(), name))
	}
	// The context of the hold is a child of this one, so a deadline would end the hold too.
	ctx, cancel := context.WithCancel(context.Background())
	if wait < 0 {
		return held(l.locker.WithContext(ctx, name))
	}
	timer := time.AfterFunc(wait, cancel)
	hold, err := held(l.locker.WithContext(ctx, name))
	if timer.Stop() {
		return hold, err
	}
	if err == nil {
		_ = hold.Unlock()
	}
	return nil, errBusy
}

func held(ctx context.Context, release context.CancelFunc, err error) (Hold, error) {
	if errors.Is(err, rueidislock.ErrNotLocked) {
		return nil, errBusy
	}
	return rueidislockHold{ctx, release}, err
}

type rueidislockHold struct {
	ctx     context.Context
	release context.CancelFunc
}

func (h rueidislockHold) Lost() (string, time.Time) {
	if err := h.ctx.Err(); err != nil {
		return "the context is done: " + err.Error(), time.Time{}
	}
	return "", time.Time{}
}

func (h rueidislockHold) Done() <-chan struct{} { return h.ctx.Done() }

// The library reports no outcome of a release.
func (h rueidislockHold) Unlock() error {
	wasLost := h.ctx.Err() != nil
	h.release()
	if wasLost {
		return errLost
	}
	return nil
}
