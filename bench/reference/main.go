// A bare device plugin: what the machine and grpc-go make of the job when nothing else is done.
//
// It is the yardstick of the benchmark and no product: no configuration, no validation, no look
// at what the files are. Whatever is in a resource's directory is a healthy device.
package main

import (
	"encoding/json"
	"flag"
	"log"
	"os"
	"path/filepath"
)

// Served is one resource of the file that --resources names.
type Served struct {
	Name      string `json:"name"`
	Directory string `json:"directory"`
	// Only names that begin so, where several resources share a directory.
	Prefix string `json:"prefix"`
}

func main() {
	log.SetFlags(log.Lmicroseconds)
	pluginDir := flag.String("plugin-dir", "", "the kubelet's plugin directory")
	file := flag.String("resources", "", "a JSON list of name, directory, prefix")
	flag.Parse()
	served, err := read(*file)
	if err != nil {
		log.Fatal(err)
	}
	// The soft limit of descriptors has been raised by Go's runtime.
	resources := make([]*resource, 0, len(served))
	for _, one := range served {
		resources = append(resources, newResource(one))
	}
	kubelet := filepath.Join(*pluginDir, "kubelet.sock")
	registrar := newRegistrar(*pluginDir, kubelet, resources)
	watcher, err := newWatcher()
	if err != nil {
		log.Fatal(err)
	}
	if err := watcher.watchKubelet(*pluginDir, registrar.again); err != nil {
		log.Fatal(err)
	}
	for _, one := range resources {
		if err := watcher.watch(one); err != nil {
			log.Fatal(err)
		}
	}
	go registrar.run()
	log.Fatal(watcher.run())
}

func read(file string) ([]Served, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var served []Served
	return served, json.Unmarshal(text, &served)
}
