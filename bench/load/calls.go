package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	pb "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

const warmUp = 20 // calls that are not counted

type callsArguments struct {
	Resource string `json:"resource"`
	Count    int    `json:"count"`
	Callers  int    `json:"callers"`
	Size     int    `json:"size"` // of a preference
}

type callsResult struct {
	Us      []float64 `json:"us"`
	TotalUs float64   `json:"total_us"`
}

// Allocate asks for one device at a time, for another one each time.
func (g *generator) allocate(with callsArguments) (any, error) {
	one, err := g.kubelet.plugin(with.Resource)
	if err != nil {
		return nil, err
	}
	ids := one.healthy()
	return timed(with, func(i int) error {
		response, err := one.client.Allocate(context.Background(), &pb.AllocateRequest{
			ContainerRequests: []*pb.ContainerAllocateRequest{
				{DevicesIds: ids[i%len(ids) : i%len(ids)+1]},
			},
		})
		if err != nil {
			return err
		}
		answers := response.ContainerResponses
		if len(answers) != 1 || len(answers[0].Devices)+len(answers[0].Mounts) != 1 {
			return fmt.Errorf("odd answer: %v", response)
		}
		return nil
	})
}

// Preferred asks which of all devices a container should get.
func (g *generator) preferred(with callsArguments) (any, error) {
	one, err := g.kubelet.plugin(with.Resource)
	if err != nil {
		return nil, err
	}
	ids := one.healthy()
	return timed(with, func(int) error {
		request := &pb.ContainerPreferredAllocationRequest{
			AvailableDeviceIDs: ids, AllocationSize: int32(with.Size),
		}
		response, err := one.client.GetPreferredAllocation(context.Background(),
			&pb.PreferredAllocationRequest{
				ContainerRequests: []*pb.ContainerPreferredAllocationRequest{request},
			})
		if err != nil {
			return err
		}
		answers := response.ContainerResponses
		if len(answers) != 1 || len(answers[0].DeviceIDs) != with.Size {
			return fmt.Errorf("odd answer: %v", response)
		}
		return nil
	})
}

// Timed makes calls from several callers at once, on the one connection that kubelet has.
func timed(with callsArguments, call func(int) error) (any, error) {
	for i := range warmUp {
		if err := call(i); err != nil {
			return nil, err
		}
	}
	result := callsResult{Us: make([]float64, with.Count)}
	errs := make([]error, with.Callers)
	began := time.Now()
	var all sync.WaitGroup
	for caller := range with.Callers {
		all.Go(func() {
			for i := caller; i < with.Count && errs[caller] == nil; i += with.Callers {
				asked := time.Now()
				errs[caller] = call(i)
				result.Us[i] = us(time.Since(asked))
			}
		})
	}
	all.Wait()
	result.TotalUs = us(time.Since(began))
	return result, errors.Join(errs...)
}
