// A worker of the torture for the lock libraries of Go: ../README.md describes its lines. The first argument names the library.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"sync"
	"time"
)

type thread struct {
	commands chan command
	hold     Hold
}

func (t *thread) do(lib Library, c command) answer {
	switch c.Op {
	case "lock":
		wait := time.Duration(-1)
		if c.WaitMS != nil {
			wait = time.Duration(*c.WaitMS) * time.Millisecond
		}
		hold, err := lib.Lock(c.Kind, c.Names[0], wait)
		t.hold = hold
		return outcome(err)
	case "hold":
		select {
		case <-t.hold.Done():
		case <-time.After(time.Duration(c.MS) * time.Millisecond):
		}
		reason, validUntil := t.hold.Lost()
		said := answer{"ok": true}
		if reason != "" {
			said = answer{"lost": reason}
		}
		if !validUntil.IsZero() {
			said["valid_until"] = nanosOf(validUntil)
		}
		return said
	case "write":
		return outcome(lib.Write(c.Key, c.Entry))
	case "unlock":
		return outcome(t.hold.Unlock())
	}
	return answer{"error": "unknown command " + c.Op}
}

func main() {
	name := os.Args[1]
	lib, described := library(name)
	var writing sync.Mutex
	say := func(id int64, said answer) {
		said["id"], said["at"] = id, monotonic()
		text, _ := json.Marshal(said)
		writing.Lock()
		defer writing.Unlock()
		fmt.Printf("%s\n", text)
	}
	threads := map[int]*thread{}
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		var c command
		if err := json.Unmarshal(lines.Bytes(), &c); err != nil {
			panic(err)
		}
		if c.Op == "describe" {
			say(c.ID, described)
			continue
		}
		if c.Op == "open" {
			say(c.ID, outcome(lib.Open(&c.Servers)))
			continue
		}
		t := threads[c.Thread]
		if t == nil {
			t = &thread{commands: make(chan command, 1)}
			threads[c.Thread] = t
			go func() {
				for c := range t.commands {
					said := t.do(lib, c)
					say(c.ID, said)
				}
			}()
		}
		t.commands <- c
	}
}
