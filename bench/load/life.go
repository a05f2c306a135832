package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"time"
)

// A generator carries out the commands on a kubelet and the plugin that is measured.
type generator struct {
	kubelet *kubelet
	child   *exec.Cmd
	exited  chan struct{} // closed when the child has
}

func newGenerator(kubelet *kubelet) *generator {
	return &generator{kubelet: kubelet}
}

func (g *generator) handlers() map[string]handler {
	return map[string]handler{
		"start":     on(g.start),
		"kill":      on(g.kill),
		"restart":   on(g.restart),
		"counters":  on(func(struct{}) (any, error) { return g.kubelet.counters(), nil }),
		"events":    on(g.events),
		"burst":     on(g.burst),
		"reload":    on(g.reload),
		"allocate":  on(g.allocate),
		"preferred": on(g.preferred),
		"floor":     on(floor),
	}
}

// Wait returns when what was expected came; not if the child ends before, nor for ever.
func (g *generator) wait(done <-chan time.Time, milliseconds int) (time.Time, error) {
	limit := time.NewTimer(time.Duration(milliseconds) * time.Millisecond)
	defer limit.Stop()
	defer g.kubelet.expect(nil)
	select {
	case at := <-done:
		return at, nil
	case <-g.exited:
		return time.Time{}, fmt.Errorf("the process has ended: %s", g.child.ProcessState)
	case <-limit.C:
		return time.Time{}, errors.New("waited in vain")
	}
}

// All is how many resources have to be listed, each with how many healthy devices.
type all struct {
	Resources int `json:"resources"`
	Devices   int `json:"devices"`
	TimeoutMs int `json:"timeout_ms"`
}

// Listed is met when that is so of all of them.
func (a all) listed() (met func(*plugin) bool, sofar func() int) {
	seen := map[string]bool{}
	met = func(one *plugin) bool {
		if !seen[one.resource] && len(one.healthy()) >= a.Devices {
			seen[one.resource] = true
		}
		return len(seen) == a.Resources
	}
	return met, func() int { return len(seen) }
}

func (g *generator) listed(a all, trigger func() (time.Time, error)) (time.Duration, error) {
	met, sofar := a.listed()
	done := g.kubelet.expect(met)
	began, err := trigger()
	if err != nil {
		g.kubelet.expect(nil)
		return 0, err
	}
	at, err := g.wait(done, a.TimeoutMs)
	if err != nil {
		return 0, fmt.Errorf("%d of %d resources listed: %w", sofar(), a.Resources, err)
	}
	return at.Sub(began), nil
}

type startArguments struct {
	all
	Argv      []string `json:"argv"`
	Env       []string `json:"env"`
	Directory string   `json:"directory"`
	Log       string   `json:"log"`
}

type startResult struct {
	Pid int     `json:"pid"`
	Us  float64 `json:"us"`
}

// Start starts a plugin; microseconds from exec to the last resource's list.
func (g *generator) start(with startArguments) (any, error) {
	if g.child != nil {
		return nil, errors.New("one is running")
	}
	output, err := os.Create(with.Log)
	if err != nil {
		return nil, err
	}
	defer output.Close()
	child := exec.Command(with.Argv[0], with.Argv[1:]...)
	child.Env, child.Dir, child.Stdout, child.Stderr = with.Env, with.Directory, output, output
	child.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	took, err := g.listed(with.all, func() (time.Time, error) {
		began := time.Now()
		if err := child.Start(); err != nil {
			return began, err
		}
		exited := make(chan struct{})
		g.child, g.exited = child, exited
		go func() {
			_ = child.Wait() // the status is in ProcessState
			close(exited)
		}()
		return began, nil
	})
	if err != nil {
		return nil, err
	}
	return startResult{child.Process.Pid, us(took)}, nil
}

type killArguments struct {
	TimeoutMs int `json:"timeout_ms"`
}

type killResult struct {
	Status string  `json:"status"`
	Us     float64 `json:"us"`
}

// Kill ends the plugin by SIGTERM, as kubelet would; by SIGKILL if it does not end.
func (g *generator) kill(with killArguments) (any, error) {
	if g.child == nil {
		return killResult{}, nil
	}
	began := time.Now()
	child, exited := g.child, g.exited
	g.child, g.exited = nil, nil
	_ = child.Process.Signal(syscall.SIGTERM) // it may have ended
	select {
	case <-exited:
		return killResult{child.ProcessState.String(), us(time.Since(began))}, nil
	case <-time.After(time.Duration(with.TimeoutMs) * time.Millisecond):
		_ = child.Process.Kill()
		<-exited
		return nil, errors.New("SIGTERM did not end it")
	}
}

type restartArguments struct {
	all
	DownMs int `json:"down_ms"` // from the old one's end to the new one's socket
	GapUs  int `json:"gap_us"`  // between bind and listen; a real one has next to none
}

type restartResult struct {
	Us float64 `json:"us"`
}

// Restart is the kubelet's; microseconds from the new socket to the last resource's list.
func (g *generator) restart(with restartArguments) (any, error) {
	g.kubelet.stop()
	if err := g.kubelet.clean(); err != nil {
		return nil, err
	}
	time.Sleep(time.Duration(with.DownMs) * time.Millisecond)
	took, err := g.listed(with.all, func() (time.Time, error) {
		began := time.Now()
		return began, g.kubelet.start(time.Duration(with.GapUs) * time.Microsecond)
	})
	if err != nil {
		return nil, err
	}
	return restartResult{us(took)}, nil
}

func us(took time.Duration) float64 {
	return float64(took.Nanoseconds()) / 1000
}
