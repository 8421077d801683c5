// Checks a history of the torture for mutual exclusion by Porcupine, a checker of linearizability that knows nothing of the rules in
// tests/it/support/bare/history: see README.md.
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"math"
	"os"
	"slices"
	"sort"
	"time"

	"github.com/anishathalye/porcupine"
)

// One line of a history.
type event struct {
	Process int64  `json:"process"`
	Type    string `json:"type"`
	F       string `json:"f"`
	Time    int64  `json:"time"`
	Value   struct {
		Name       string   `json:"name"`
		Names      []string `json:"names"`
		Mode       string   `json:"mode"`
		ValidUntil int64    `json:"valid_until"`
		SlackMS    int64    `json:"slack_ms"`
		Client     int64    `json:"client"`
		Until      string   `json:"until"`
	} `json:"value"`
}

// One hold as its thread saw it; zero is a time that never came.
type hold struct {
	names                                          []string
	process, asked, granted, lost, releases, until int64
	validUntil, released                           int64
	failed, forced                                 bool
}

// A thread that was stopped goes on to the release this soon, if it had looked at the hold just before.
const atOnce = int64(5 * time.Millisecond)

// What the lock is asked for. The state of the model is the hold that has the lock, or -1.
type request struct {
	release bool
	hold    int
}

var model = porcupine.Model{
	Init: func() any { return -1 },
	Step: func(state, input, _ any) (bool, any) {
		asked := input.(request)
		if asked.release {
			return state == asked.hold, -1
		}
		return state == -1, asked.hold
	},
	DescribeOperation: func(input, _ any) string {
		asked := input.(request)
		if asked.release {
			return fmt.Sprintf("release of hold %d", asked.hold)
		}
		return fmt.Sprintf("acquire of hold %d", asked.hold)
	},
}

type span struct{ begin, end int64 }

type history struct {
	holds  []*hold
	slack  int64
	killed map[int64]int64
	stops  map[int64][]span
	// By name: when somebody took the lock away from whoever had it.
	forces map[string][]span
}

func read(events []event) *history {
	h := &history{slack: 300e6, killed: map[int64]int64{}, stops: map[int64][]span{}, forces: map[string][]span{}}
	asks, open, forces := map[int64]*hold{}, map[int64]*hold{}, map[int64]event{}
	for _, e := range events {
		its := open[e.Process]
		switch {
		case e.F == "setup":
			h.slack = e.Value.SlackMS * 1e6
		case e.F == "kill-worker" && e.Value.Until == "begin":
			h.killed[e.Value.Client] = e.Time
		case e.F == "stop-worker" && e.Value.Until == "begin":
			h.stops[e.Value.Client] = append(h.stops[e.Value.Client], span{e.Time, math.MaxInt64})
		case e.F == "stop-worker":
			stops := h.stops[e.Value.Client]
			stops[len(stops)-1].end = e.Time
		case e.F == "force-unlock" && e.Type == "invoke":
			forces[e.Process] = e
		case e.F == "force-unlock" && e.Type != "fail":
			name := forces[e.Process].Value.Name
			h.forces[name] = append(h.forces[name], span{forces[e.Process].Time, e.Time})
		case e.F == "acquire" && e.Type == "invoke":
			names := e.Value.Names
			if len(names) == 0 {
				names = []string{e.Value.Name}
			}
			asks[e.Process] = &hold{names: names, process: e.Process, asked: e.Time}
		case e.F == "acquire" && e.Type == "ok" && (e.Value.Mode == "exclusive" || e.Value.Mode == "write"):
			granted := asks[e.Process]
			granted.granted = e.Time
			open[e.Process] = granted
			h.holds = append(h.holds, granted)
		case its == nil:
		case e.F == "lost":
			its.lost, its.validUntil = e.Time, e.Value.ValidUntil
		case e.F == "release" && e.Type == "invoke":
			its.releases = e.Time
			if its.validUntil == 0 {
				its.validUntil = e.Value.ValidUntil
			}
		case e.F == "release":
			its.released, its.failed = e.Time, e.Type != "ok"
			delete(open, e.Process)
		}
	}
	for _, its := range h.holds {
		its.until = h.countedOn(its)
	}
	return h
}

// Until when a thread counted on its hold: until it heard of a loss, knew the hold to be over, began to release, or was killed; or
// until the hold was taken away by force, which its thread hears of later.
func (h *history) countedOn(its *hold) int64 {
	until := int64(math.MaxInt64)
	earlier := func(at int64) {
		if at != 0 {
			until = min(until, at)
		}
	}
	earlier(its.lost)
	earlier(its.releases)
	if its.validUntil == 0 && (its.lost != 0 || its.failed) {
		until -= h.slack
	}
	earlier(its.validUntil)
	client := its.process / 1000
	if killed := h.killed[client]; killed != 0 && its.released == 0 {
		until = min(until, killed-h.slack)
	}
	for _, stop := range h.stops[client] {
		if stop.begin <= until && until <= stop.end+atOnce {
			until = stop.begin
		}
	}
	for _, name := range its.names {
		for _, force := range h.forces[name] {
			if its.granted <= force.end && force.begin < until {
				until, its.forced = force.begin, true
			}
		}
	}
	return max(until, its.granted)
}

// The operations on one name. A hold that was released as usual is free between the two lines about that. Every other hold is free
// at some time after its thread stopped counting on it.
func (h *history) operations(name string) []porcupine.Operation {
	var all []porcupine.Operation
	for number, its := range h.holds {
		if !slices.Contains(its.names, name) {
			continue
		}
		free := int64(math.MaxInt64)
		if its.released != 0 && !its.failed && !its.forced && its.lost == 0 {
			free = max(its.released, its.until)
		}
		client := int(its.process)
		all = append(all,
			porcupine.Operation{ClientId: client, Input: request{false, number}, Call: its.asked, Return: its.granted},
			porcupine.Operation{ClientId: client, Input: request{true, number}, Call: its.until, Return: free})
	}
	return all
}

func main() {
	limit := flag.Duration("limit", time.Minute, "how long a name may take")
	flag.Parse()
	file, err := os.Open(flag.Arg(0))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	var events []event
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 64<<20)
	for lines.Scan() {
		var e event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(2)
		}
		events = append(events, e)
	}
	sort.SliceStable(events, func(a, b int) bool { return events[a].Time < events[b].Time })
	h := read(events)
	if len(h.holds) == 0 {
		fmt.Fprintln(os.Stderr, "no exclusive hold is in this history")
		os.Exit(2)
	}
	names := map[string]bool{}
	for _, its := range h.holds {
		for _, name := range its.names {
			names[name] = true
		}
	}
	code := 0
	for _, name := range slices.Sorted(maps.Keys(names)) {
		operations := h.operations(name)
		began := time.Now()
		result := porcupine.CheckOperationsTimeout(model, operations, *limit)
		fmt.Printf("%s: %d holds: %s in %.2f s\n", name, len(operations)/2, result, time.Since(began).Seconds())
		if result != porcupine.Ok {
			code = 1
		}
	}
	os.Exit(code)
}
