// The pod-resources server is the kubelet's own; what it asks for is adapted here
// as the kubelet's container manager does it, whose package would drag in the rest
// of a kubelet. Methods whose signature changes between versions are in the
// manager_1_NN.go.

package main

import (
	"errors"
	"os"

	"google.golang.org/grpc"
	v1 "k8s.io/api/core/v1"
	"k8s.io/cri-client/pkg/util"
	"k8s.io/klog/v2"
	podresourcesapi "k8s.io/kubelet/pkg/apis/podresources/v1"
	"k8s.io/kubernetes/pkg/kubelet/apis/podresources"
	"k8s.io/kubernetes/pkg/kubelet/cm/devicemanager"
)

// podsProvider knows active pods only. A kubelet also has those that have ended and
// are not deleted yet, which GetPods lists; only 1.32 uses that one.
type podsProvider func() []*v1.Pod

func (p podsProvider) GetActivePods() []*v1.Pod { return p() }
func (p podsProvider) GetPods() []*v1.Pod       { return p() }

func (p podsProvider) GetPodByName(namespace, name string) (*v1.Pod, bool) {
	for _, pod := range p() {
		if pod.Namespace == namespace && pod.Name == name {
			return pod, true
		}
	}
	return nil, false
}

// devicesProvider asks the device manager; the rest of it is in the version's file.
type devicesProvider struct{ impl managerImpl }

func (p devicesProvider) GetDevices(uid, container string) []*podresourcesapi.ContainerDevices {
	return containerDevices(p.impl.GetDevices(uid, container))
}

// noProvider is for what this kubelet has none of: CPUs and memory to give to one
// container alone, and DRA. The rest of it is in the version's file.
type noProvider struct{}

func (noProvider) GetAllocatableCPUs() []int64 { return nil }

// containerDevices is as in the kubelet's container_manager.go: one entry a device,
// and one for each NUMA node of a device that has some.
func containerDevices(
	instances devicemanager.ResourceDeviceInstances,
) []*podresourcesapi.ContainerDevices {
	var all []*podresourcesapi.ContainerDevices
	for resource, devices := range instances {
		for id, device := range devices {
			entry := func(topology *podresourcesapi.TopologyInfo) {
				all = append(all, &podresourcesapi.ContainerDevices{
					ResourceName: resource, DeviceIds: []string{id}, Topology: topology,
				})
			}
			topology := device.GetTopology()
			if topology == nil {
				entry(nil)
				continue
			}
			for _, node := range topology.GetNodes() {
				numaNode := &podresourcesapi.NUMANode{ID: node.GetID()}
				entry(&podresourcesapi.TopologyInfo{Nodes: []*podresourcesapi.NUMANode{numaNode}})
			}
		}
	}
	return all
}

// servePodResources replaces a dead socket, as a kubelet does. Unlike a kubelet,
// which leaves its socket behind, what it returns removes it.
func (m manager) servePodResources(path string, pods func() []*v1.Pod) (func(), error) {
	listener, err := util.CreateListener(path)
	if err != nil {
		return nil, err
	}
	server := grpc.NewServer(podResourcesLimit()) // a kubelet refuses who asks too often
	podresourcesapi.RegisterPodResourcesListerServer(server,
		newPodResourcesServer(podresources.PodResourcesProviders{
			Pods:             podsProvider(pods),
			Devices:          devicesProvider{m.impl},
			Cpus:             noProvider{},
			Memory:           noProvider{},
			DynamicResources: noProvider{},
		}))
	go func() {
		// Stopped is what it may say too if it is stopped before it serves.
		if err := server.Serve(listener); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			klog.Fatal(err)
		}
	}()
	return func() {
		server.Stop()
		_ = os.Remove(path) // it may be gone with the test's directory
	}, nil
}
