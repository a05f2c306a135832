// Command cdi injects CDI devices into the OCI spec of a container as runtimes do,
// by the library that they use, and prints what the container would get. Tests
// compare it with what devhost meant.
//
// It reads one request from stdin and writes one response to stdout, both JSON.
package main

import (
	"encoding/json"
	"fmt"
	"os"

	oci "github.com/opencontainers/runtime-spec/specs-go"
	"tags.cncf.io/container-device-interface/pkg/cdi"
	specs "tags.cncf.io/container-device-interface/specs-go"
)

type request struct {
	SpecDir string   `json:"specDir"`
	Devices []string `json:"devices"` // fully qualified
	UID     uint32   `json:"uid"`     // of the container's process
	GID     uint32   `json:"gid"`
	Env     []string `json:"env"` // what the container has before
}

type response struct {
	Specs      []loadedSpec        `json:"specs"`  // the files that could be loaded
	Errors     map[string][]string `json:"errors"` // by file; injection's are under ""
	Unresolved []string            `json:"unresolved"`
	OCI        *oci.Spec           `json:"oci"`
}

type loadedSpec struct {
	Path    string   `json:"path"`
	Kind    string   `json:"kind"`
	Version string   `json:"version"`
	Minimum string   `json:"minimum"` // the least version for what the file uses
	Devices []string `json:"devices"`
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() error {
	var asked request
	decoder := json.NewDecoder(os.Stdin)
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&asked); err != nil {
		return fmt.Errorf("request: %w", err)
	}
	cache, err := cdi.NewCache(cdi.WithSpecDirs(asked.SpecDir), cdi.WithAutoRefresh(false))
	if err != nil {
		return err
	}
	answer := response{Errors: map[string][]string{}}
	for path, errs := range cache.GetErrors() {
		for _, err := range errs {
			answer.Errors[path] = append(answer.Errors[path], err.Error())
		}
	}
	// Before injection, which fills in fields that would count for the minimum.
	if answer.Specs, err = loaded(cache); err != nil {
		return err
	}
	answer.OCI = &oci.Spec{Process: &oci.Process{
		User: oci.User{UID: asked.UID, GID: asked.GID},
		Env:  asked.Env,
	}}
	if answer.Unresolved, err = cache.InjectDevices(answer.OCI, asked.Devices...); err != nil {
		answer.Errors[""] = append(answer.Errors[""], err.Error())
	}
	return json.NewEncoder(os.Stdout).Encode(answer)
}

func loaded(cache *cdi.Cache) ([]loadedSpec, error) {
	found := []loadedSpec{}
	for _, vendor := range cache.ListVendors() {
		for _, spec := range cache.GetVendorSpecs(vendor) {
			minimum, err := specs.MinimumRequiredVersion(spec.Spec)
			if err != nil {
				return nil, err
			}
			one := loadedSpec{
				Path:    spec.GetPath(),
				Kind:    spec.Kind,
				Version: spec.Version,
				Minimum: minimum,
			}
			for _, device := range spec.Devices {
				one.Devices = append(one.Devices, device.Name)
			}
			found = append(found, one)
		}
	}
	return found, nil
}
