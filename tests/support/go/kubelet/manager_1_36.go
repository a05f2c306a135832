//go:build kubelet1.36

package main

import (
	"context"
	_ "unsafe" // for go:linkname

	"google.golang.org/grpc"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"
	podresourcesapi "k8s.io/kubelet/pkg/apis/podresources/v1"
	apisgrpc "k8s.io/kubernetes/pkg/kubelet/apis/grpc"
	"k8s.io/kubernetes/pkg/kubelet/apis/podresources"
	"k8s.io/kubernetes/pkg/kubelet/cm/containermap"
	"k8s.io/kubernetes/pkg/kubelet/cm/devicemanager"
	"k8s.io/kubernetes/pkg/kubelet/cm/topologymanager"
)

// managerImpl is the kubelet's own, with the signatures of 1.32.
type managerImpl struct{ *devicemanager.ManagerImpl }

//go:linkname newManagerImpl k8s.io/kubernetes/pkg/kubelet/cm/devicemanager.newManagerImpl
func newManagerImpl(
	logger klog.Logger, socketPath string, topology []struct{}, affinity topologymanager.Store,
) (*devicemanager.ManagerImpl, error)

func newImpl(socketPath string, affinities *affinities) (managerImpl, error) {
	impl, err := newManagerImpl(klog.Background(), socketPath, nil, affinities)
	return managerImpl{impl}, err
}

func (a *affinities) GetAffinity(podUID, container string) topologymanager.TopologyHint {
	return a.hint(podUID, container)
}

func newPodResourcesServer(
	providers podresources.PodResourcesProviders,
) podresourcesapi.PodResourcesListerServer {
	return podresources.NewV1PodResourcesServer(context.Background(), providers)
}

func podResourcesLimit() grpc.ServerOption {
	return apisgrpc.WithRateLimiter(context.Background(),
		"podresources", podresources.DefaultQPS, podresources.DefaultBurstTokens)
}

func (m managerImpl) Start(
	activePods devicemanager.ActivePodsFunc, sources sources,
	containers containermap.ContainerMap, running sets.Set[string],
) error {
	return m.ManagerImpl.Start(klog.Background(), activePods, sources, containers, running)
}

func (m managerImpl) Stop() error {
	return m.ManagerImpl.Stop(klog.Background())
}

func (m managerImpl) GetDeviceRunContainerOptions(
	pod *v1.Pod, container *v1.Container,
) (*devicemanager.DeviceRunContainerOptions, error) {
	return m.ManagerImpl.GetDeviceRunContainerOptions(context.Background(), pod, container)
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
