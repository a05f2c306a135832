package main

import (
	"bytes"
	"errors"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

const watched = unix.IN_CREATE | unix.IN_DELETE | unix.IN_MOVED_FROM | unix.IN_MOVED_TO

// A watcher has one inotify descriptor for all directories.
type watcher struct {
	descriptor int
	file       *os.File
	resources  map[int32][]*resource
	kubelet    int32
	appeared   func()
}

func newWatcher() (*watcher, error) {
	descriptor, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, err
	}
	file := os.NewFile(uintptr(descriptor), "inotify") // non-blocking: Go's poller waits for it
	return &watcher{descriptor: descriptor, file: file, resources: map[int32][]*resource{}}, nil
}

func (w *watcher) watchKubelet(directory string, appeared func()) error {
	watch, err := unix.InotifyAddWatch(w.descriptor, directory, unix.IN_CREATE|unix.IN_MOVED_TO)
	w.kubelet, w.appeared = int32(watch), appeared
	return err
}

func (w *watcher) watch(r *resource) error {
	watch, err := unix.InotifyAddWatch(w.descriptor, r.Directory, watched)
	if err != nil {
		return err
	}
	w.resources[int32(watch)] = append(w.resources[int32(watch)], r)
	return r.scan()
}

func (w *watcher) run() error {
	buffer := make([]byte, 64*1024)
	for {
		size, err := w.file.Read(buffer)
		if err != nil {
			return err
		}
		for at := 0; at+unix.SizeofInotifyEvent <= size; {
			event := (*unix.InotifyEvent)(unsafe.Pointer(&buffer[at]))
			at += unix.SizeofInotifyEvent
			name := string(bytes.TrimRight(buffer[at:at+int(event.Len)], "\x00"))
			at += int(event.Len)
			if err := w.on(event, name); err != nil {
				return err
			}
		}
	}
}

func (w *watcher) on(event *unix.InotifyEvent, name string) error {
	switch {
	case event.Mask&unix.IN_Q_OVERFLOW != 0:
		return w.rescan()
	case event.Wd == w.kubelet:
		if name == "kubelet.sock" {
			w.appeared()
		}
	default:
		present := event.Mask&(unix.IN_CREATE|unix.IN_MOVED_TO) != 0
		for _, one := range w.resources[event.Wd] {
			one.changed(name, present)
		}
	}
	return nil
}

func (w *watcher) rescan() error {
	w.appeared()
	var errs []error
	for _, those := range w.resources {
		for _, one := range those {
			errs = append(errs, one.scan())
		}
	}
	return errors.Join(errs...)
}
