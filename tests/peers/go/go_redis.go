package main

import (
	"context"
	"fmt"

	"github.com/redis/go-redis/v9"
)

// What redsync and redislock have in common: the client.
type goRedis struct{ clients []*redis.Client }

// A client for each URL, or the client of the master that the Sentinels name.
func (g *goRedis) Open(s *Servers) error {
	g.clients = nil
	if s.Sentinel != nil {
		g.clients = []*redis.Client{redis.NewFailoverClient(&redis.FailoverOptions{
			MasterName:            s.Sentinel.Service,
			SentinelAddrs:         s.Sentinel.Addresses,
			Password:              s.Sentinel.Password,
			ClientName:            s.ClientName,
			DialTimeout:           s.timeout(),
			ReadTimeout:           s.timeout(),
			WriteTimeout:          s.timeout(),
			ContextTimeoutEnabled: true,
		})}
		return nil
	}
	for _, url := range s.URLs {
		options, err := redis.ParseURL(url)
		if err != nil {
			return err
		}
		options.ClientName = s.ClientName
		options.DialTimeout, options.ReadTimeout, options.WriteTimeout = s.timeout(), s.timeout(), s.timeout()
		options.ContextTimeoutEnabled = true
		g.clients = append(g.clients, redis.NewClient(options))
	}
	return nil
}

func (g *goRedis) Write(key, entry string) error {
	return g.clients[0].RPush(context.Background(), key, entry).Err()
}

func library(name string) (Library, answer) {
	one, sentinel, masters := "one", "sentinel", "masters"
	describe := func(module string, renews bool, kinds []string, deployments ...string) answer {
		return answer{
			"library": name, "version": version(module), "kinds": kinds, "deployments": deployments,
			"renews": renews, "guards": false,
		}
	}
	switch name {
	case "redsync":
		return &redsyncLibrary{}, describe("github.com/go-redsync/redsync/v4", false, []string{"mutex", "red"}, one, sentinel, masters)
	case "redislock":
		return &redislockLibrary{}, describe("github.com/bsm/redislock", false, []string{"mutex"}, one, sentinel)
	case "rueidislock":
		return &rueidislockLibrary{}, describe("github.com/redis/rueidis", true, []string{"mutex"}, one, sentinel)
	}
	panic(fmt.Sprintf("%s is none of redsync, redislock, rueidislock", name))
}
