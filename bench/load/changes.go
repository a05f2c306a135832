package main

import (
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

var null = int(unix.Mkdev(1, 3)) // a device node that any machine has

// Create makes what a device is to the plugin under test; its ID is its name.
func create(kind, path string) error {
	switch kind {
	case "char":
		return unix.Mknod(path, unix.S_IFCHR|0o600, null)
	case "file":
		file, err := unix.Open(path, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_CLOEXEC, 0o600)
		if err != nil {
			return err
		}
		return unix.Close(file)
	}
	return fmt.Errorf("unknown kind %q", kind)
}

type target struct {
	Resource string `json:"resource"`
	Path     string `json:"path"`
}

type eventsArguments struct {
	Targets   []target `json:"targets"` // taken in turn
	Kind      string   `json:"kind"`
	Count     int      `json:"count"`
	PauseMs   int      `json:"pause_ms"` // so that each finds the plugin at rest
	TimeoutMs int      `json:"timeout_ms"`
}

type eventsResult struct {
	Add    []float64 `json:"add"`
	Remove []float64 `json:"remove"`
}

// Events makes a file and removes it, again and again; microseconds from before the call that
// does so to the list that tells of it, decoded.
func (g *generator) events(with eventsArguments) (any, error) {
	pause := time.Duration(with.PauseMs) * time.Millisecond
	var result eventsResult
	for i := range with.Count {
		target := with.Targets[i%len(with.Targets)]
		time.Sleep(pause)
		took, err := g.event(target, true, with.TimeoutMs, func() error {
			return create(with.Kind, target.Path)
		})
		if err != nil {
			return nil, err
		}
		result.Add = append(result.Add, us(took))
		time.Sleep(pause)
		took, err = g.event(target, false, with.TimeoutMs, func() error {
			return unix.Unlink(target.Path)
		})
		if err != nil {
			return nil, err
		}
		result.Remove = append(result.Remove, us(took))
	}
	return result, nil
}

func (g *generator) event(
	target target, present bool, timeoutMs int, change func() error,
) (time.Duration, error) {
	id := filepath.Base(target.Path)
	before, err := g.kubelet.plugin(target.Resource)
	if err != nil {
		return 0, err
	}
	if before.has(id) == present {
		return 0, fmt.Errorf("%s of %s is so already", id, target.Resource)
	}
	done := g.kubelet.expect(func(one *plugin) bool {
		return one.resource == target.Resource && one.has(id) == present
	})
	began := time.Now()
	if err := change(); err != nil {
		return 0, err
	}
	at, err := g.wait(done, timeoutMs)
	if err != nil {
		return 0, fmt.Errorf("%s of %s: %w", id, target.Resource, err)
	}
	return at.Sub(began), nil
}

type burstArguments struct {
	Resource  string   `json:"resource"`
	Paths     []string `json:"paths"`
	Kind      string   `json:"kind"`
	SettleMs  int      `json:"settle_ms"` // for messages that come after the complete list
	TimeoutMs int      `json:"timeout_ms"`
}

type burstResult struct {
	Us       float64 `json:"us"`
	WriteUs  float64 `json:"write_us"`
	Messages int     `json:"messages"`
}

// Burst makes many files as quickly as it can; microseconds from the last one to the complete
// list, which may come before the call for the last one has returned. Then it removes them.
func (g *generator) burst(with burstArguments) (any, error) {
	before, err := g.kubelet.plugin(with.Resource)
	if err != nil {
		return nil, err
	}
	had := len(before.healthy())
	done := g.reaches(with.Resource, had+len(with.Paths))
	began := time.Now()
	for _, path := range with.Paths {
		if err := create(with.Kind, path); err != nil {
			return nil, err
		}
	}
	last := time.Now()
	at, err := g.wait(done, with.TimeoutMs)
	if err != nil {
		return nil, err
	}
	time.Sleep(time.Duration(with.SettleMs) * time.Millisecond)
	after, err := g.kubelet.plugin(with.Resource)
	if err != nil {
		return nil, err
	}
	done = g.reaches(with.Resource, had)
	for _, path := range with.Paths {
		if err := unix.Unlink(path); err != nil {
			return nil, err
		}
	}
	if _, err := g.wait(done, with.TimeoutMs); err != nil {
		return nil, err
	}
	time.Sleep(time.Duration(with.SettleMs) * time.Millisecond)
	return burstResult{us(at.Sub(last)), us(last.Sub(began)), after.messages - before.messages}, nil
}

func (g *generator) reaches(resource string, devices int) <-chan time.Time {
	return g.kubelet.expect(func(one *plugin) bool {
		return one.resource == resource && len(one.healthy()) == devices
	})
}

type reloadArguments struct {
	File      string `json:"file"`
	Text      string `json:"text"`
	Resource  string `json:"resource"`
	ID        string `json:"id"`
	Present   bool   `json:"present"`   // whether the new configuration has that device
	SettleMs  int    `json:"settle_ms"` // for streams that end after the list came
	TimeoutMs int    `json:"timeout_ms"`
}

type reloadResult struct {
	Us            float64 `json:"us"`
	Ended         int     `json:"ended"`
	Registrations int     `json:"registrations"`
	Messages      int     `json:"messages"` // to all resources
}

// Reload puts a configuration in the place of another by a rename; microseconds from there to
// the list that shows it.
func (g *generator) reload(with reloadArguments) (any, error) {
	unfinished := with.File + ".new"
	if err := os.WriteFile(unfinished, []byte(with.Text), 0o600); err != nil {
		return nil, err
	}
	before := g.kubelet.counters()
	target := target{Resource: with.Resource, Path: with.ID}
	took, err := g.event(target, with.Present, with.TimeoutMs, func() error {
		return os.Rename(unfinished, with.File)
	})
	if err != nil {
		return nil, err
	}
	time.Sleep(time.Duration(with.SettleMs) * time.Millisecond)
	after := g.kubelet.counters()
	return reloadResult{
		us(took),
		after.Ended - before.Ended,
		after.Registrations - before.Registrations,
		after.Messages - before.Messages,
	}, nil
}
