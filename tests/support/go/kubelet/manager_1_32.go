//go:build kubelet1.32

package main

import (
	_ "unsafe" // for go:linkname

	"google.golang.org/grpc"
	v1 "k8s.io/api/core/v1"
	podresourcesapi "k8s.io/kubelet/pkg/apis/podresources/v1"
	apisgrpc "k8s.io/kubernetes/pkg/kubelet/apis/grpc"
	"k8s.io/kubernetes/pkg/kubelet/apis/podresources"
	"k8s.io/kubernetes/pkg/kubelet/cm/devicemanager"
	"k8s.io/kubernetes/pkg/kubelet/cm/topologymanager"
)

// managerImpl is the kubelet's own: manager.go calls it as it is here.
type managerImpl struct{ *devicemanager.ManagerImpl }

//go:linkname newManagerImpl k8s.io/kubernetes/pkg/kubelet/cm/devicemanager.newManagerImpl
func newManagerImpl(
	socketPath string, topology []struct{}, affinity topologymanager.Store,
) (*devicemanager.ManagerImpl, error)

func newImpl(socketPath string, affinities *affinities) (managerImpl, error) {
	impl, err := newManagerImpl(socketPath, nil, affinities)
	return managerImpl{impl}, err
}

func (a *affinities) GetAffinity(podUID, container string) topologymanager.TopologyHint {
	return a.hint(podUID, container)
}

func newPodResourcesServer(
	providers podresources.PodResourcesProviders,
) podresourcesapi.PodResourcesListerServer {
	return podresources.NewV1PodResourcesServer(providers)
}

func podResourcesLimit() grpc.ServerOption {
	return apisgrpc.WithRateLimiter(
		"podresources", podresources.DefaultQPS, podresources.DefaultBurstTokens)
}

func (p devicesProvider) UpdateAllocatedDevices() {
	p.impl.UpdateAllocatedDevices()
}

func (p devicesProvider) GetAllocatableDevices() []*podresourcesapi.ContainerDevices {
	return containerDevices(p.impl.GetAllocatableDevices())
}

func (noProvider) GetCPUs(string, string) []int64 {
	return nil
}

func (noProvider) GetMemory(string, string) []*podresourcesapi.ContainerMemory {
	return nil
}

func (noProvider) GetAllocatableMemory() []*podresourcesapi.ContainerMemory {
	return nil
}

func (noProvider) GetDynamicResources(
	*v1.Pod, *v1.Container,
) []*podresourcesapi.DynamicResource {
	return nil
}
