package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const eventsSize = 64 * 1024

type floorArguments struct {
	Directory string `json:"directory"`
	Kind      string `json:"kind"`
	Count     int    `json:"count"`
	PauseMs   int    `json:"pause_ms"`
}

type floorResult struct {
	Inotify []float64 `json:"inotify"` // from before the call to the event, in this process
	Relay   []float64 `json:"relay"`   // by another process, which sends a byte when it has it
	Echo    []float64 `json:"echo"`    // a byte to another process and back
}

// Floor measures what no plugin can be quicker than. Plain blocking calls: no poller of Go's.
func floor(with floorArguments) (any, error) {
	var result floorResult
	var err error
	if result.Inotify, err = inotify(with); err != nil {
		return nil, err
	}
	pause := time.Duration(with.PauseMs) * time.Millisecond
	path := filepath.Join(with.Directory, "floor")
	result.Relay, err = beside("relay:"+with.Directory, func(socket int) ([]float64, error) {
		return repeated(with.Count, pause, func() error {
			if err := create(with.Kind, path); err != nil {
				return err
			}
			return readByte(socket)
		}, func() error { return unix.Unlink(path) })
	})
	if err != nil {
		return nil, err
	}
	result.Echo, err = beside("echo", func(socket int) ([]float64, error) {
		return repeated(with.Count, pause, func() error {
			if err := writeByte(socket); err != nil {
				return err
			}
			return readByte(socket)
		}, func() error { return nil })
	})
	return result, err
}

func inotify(with floorArguments) ([]float64, error) {
	watch, err := watchCreated(with.Directory)
	if err != nil {
		return nil, err
	}
	defer unix.Close(watch)
	path := filepath.Join(with.Directory, "floor")
	buffer := make([]byte, eventsSize)
	return repeated(with.Count, time.Duration(with.PauseMs)*time.Millisecond, func() error {
		if err := create(with.Kind, path); err != nil {
			return err
		}
		_, err := read(watch, buffer)
		return err
	}, func() error { return unix.Unlink(path) })
}

func repeated(count int, pause time.Duration, do, undo func() error) ([]float64, error) {
	took := make([]float64, 0, count)
	for range count {
		time.Sleep(pause)
		began := time.Now()
		if err := do(); err != nil {
			return nil, err
		}
		took = append(took, us(time.Since(began)))
		if err := undo(); err != nil {
			return nil, err
		}
	}
	return took, nil
}

// Beside runs this program as a helper at the other end of a socket.
func beside(what string, do func(socket int) ([]float64, error)) ([]float64, error) {
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(ends[0])
	theirs := os.NewFile(uintptr(ends[1]), "helper")
	helper := exec.Command("/proc/self/exe", "helper", what)
	helper.ExtraFiles, helper.Stderr = []*os.File{theirs}, os.Stderr
	helper.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	err = helper.Start()
	theirs.Close()
	if err != nil {
		return nil, err
	}
	defer helper.Wait()
	defer helper.Process.Kill()
	if err := readByte(ends[0]); err != nil { // it is ready
		return nil, err
	}
	return do(ends[0])
}

// Help is the helper's side: "echo" sends back each byte, "relay:DIRECTORY" one for each file.
func help(what string) error {
	const socket = 3
	var directory string
	wait := func() error { return readByte(socket) }
	if _, err := fmt.Sscanf(what, "relay:%s", &directory); err == nil {
		watch, err := watchCreated(directory)
		if err != nil {
			return err
		}
		buffer := make([]byte, eventsSize)
		wait = func() error {
			_, err := read(watch, buffer)
			return err
		}
	}
	for {
		if err := writeByte(socket); err != nil {
			return err
		}
		if err := wait(); err != nil {
			return err
		}
	}
}

func watchCreated(directory string) (int, error) {
	watch, err := unix.InotifyInit1(unix.IN_CLOEXEC)
	if err != nil {
		return 0, err
	}
	_, err = unix.InotifyAddWatch(watch, directory, unix.IN_CREATE)
	return watch, err
}

// Read goes on when one of the runtime's own signals came between.
func read(descriptor int, buffer []byte) (int, error) {
	for {
		size, err := unix.Read(descriptor, buffer)
		if err != unix.EINTR {
			return size, err
		}
	}
}

func readByte(socket int) error {
	one := make([]byte, 1)
	switch size, err := read(socket, one); {
	case err != nil:
		return err
	case size == 0:
		return errors.New("the other end has closed")
	}
	return nil
}

func writeByte(socket int) error {
	_, err := unix.Write(socket, []byte{0})
	return err
}
