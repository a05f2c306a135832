package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	pb "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// A resource is a set of names, and the streams that tell the kubelet of it.
type resource struct {
	pb.UnimplementedDevicePluginServer
	Served

	mu      sync.Mutex
	devices map[string]bool
	streams map[chan struct{}]bool
}

func newResource(served Served) *resource {
	return &resource{
		Served:  served,
		devices: map[string]bool{},
		streams: map[chan struct{}]bool{},
	}
}

// Scan replaces what is known by what is there.
func (r *resource) scan() error {
	entries, err := os.ReadDir(r.Directory)
	if err != nil {
		return err
	}
	found := map[string]bool{}
	for _, entry := range entries {
		if strings.HasPrefix(entry.Name(), r.Prefix) {
			found[entry.Name()] = true
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.devices = found
	r.tell()
	return nil
}

// Changed takes note of one file that came or went.
func (r *resource) changed(name string, present bool) {
	if !strings.HasPrefix(name, r.Prefix) {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if present {
		r.devices[name] = true
	} else {
		delete(r.devices, name)
	}
	r.tell()
}

func (r *resource) tell() {
	for stream := range r.streams {
		select {
		case stream <- struct{}{}:
		default: // it is about to send, and will send this too
		}
	}
}

func (r *resource) list() *pb.ListAndWatchResponse {
	r.mu.Lock()
	defer r.mu.Unlock()
	devices := make([]*pb.Device, 0, len(r.devices))
	for id := range r.devices {
		devices = append(devices, &pb.Device{ID: id, Health: pb.Healthy})
	}
	return &pb.ListAndWatchResponse{Devices: devices}
}

func (r *resource) GetDevicePluginOptions(
	context.Context, *pb.Empty,
) (*pb.DevicePluginOptions, error) {
	return &pb.DevicePluginOptions{GetPreferredAllocationAvailable: true}, nil
}

func (r *resource) ListAndWatch(_ *pb.Empty, stream pb.DevicePlugin_ListAndWatchServer) error {
	changed := make(chan struct{}, 1)
	r.mu.Lock()
	r.streams[changed] = true
	r.mu.Unlock()
	defer func() {
		r.mu.Lock()
		delete(r.streams, changed)
		r.mu.Unlock()
	}()
	for {
		if err := stream.Send(r.list()); err != nil {
			return err
		}
		select {
		case <-changed:
		case <-stream.Context().Done():
			return nil
		}
	}
}

func (r *resource) Allocate(
	_ context.Context, request *pb.AllocateRequest,
) (*pb.AllocateResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	response := &pb.AllocateResponse{}
	for _, container := range request.ContainerRequests {
		answer := &pb.ContainerAllocateResponse{}
		for _, id := range container.DevicesIds {
			if !r.devices[id] {
				return nil, status.Error(codes.NotFound, id)
			}
			path := filepath.Join(r.Directory, id)
			answer.Devices = append(answer.Devices,
				&pb.DeviceSpec{ContainerPath: path, HostPath: path, Permissions: "rw"})
		}
		response.ContainerResponses = append(response.ContainerResponses, answer)
	}
	return response, nil
}

func (r *resource) GetPreferredAllocation(
	_ context.Context, request *pb.PreferredAllocationRequest,
) (*pb.PreferredAllocationResponse, error) {
	response := &pb.PreferredAllocationResponse{}
	for _, container := range request.ContainerRequests {
		size := int(container.AllocationSize)
		if size > len(container.AvailableDeviceIDs) {
			return nil, errors.New("more is wanted than there is")
		}
		answer := &pb.ContainerPreferredAllocationResponse{
			DeviceIDs: container.AvailableDeviceIDs[:size],
		}
		response.ContainerResponses = append(response.ContainerResponses, answer)
	}
	return response, nil
}
