//go:build kubelet1.37

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
	"k8s.io/kubernetes/pkg/kubelet/lifecycle"
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

func (a *affinities) GetAffinity(
	_ klog.Logger, podUID, container string,
) topologymanager.TopologyHint {
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

func (m managerImpl) GetCapacity() (capacity, allocatable v1.ResourceList, deleted []string) {
	return m.ManagerImpl.GetCapacity(klog.Background())
}

func (m managerImpl) GetAllocatableDevices() devicemanager.ResourceDeviceInstances {
	return m.ManagerImpl.GetAllocatableDevices(klog.Background())
}

func (m managerImpl) Allocate(pod *v1.Pod, container *v1.Container) error {
	return m.ManagerImpl.Allocate(context.Background(), pod, container, lifecycle.AddOperation)
}

func (m managerImpl) UpdateAllocatedDevices() {
	m.ManagerImpl.UpdateAllocatedDevices(klog.Background())
}

func (m managerImpl) UpdateAllocatedResourcesStatus(pod *v1.Pod, status *v1.PodStatus) {
	m.ManagerImpl.UpdateAllocatedResourcesStatus(klog.Background(), pod, status)
}

func (m managerImpl) GetTopologyHints(
	pod *v1.Pod, container *v1.Container,
) map[string][]topologymanager.TopologyHint {
	return m.ManagerImpl.GetTopologyHints(
		klog.Background(), pod, container, lifecycle.AddOperation)
}

func (p devicesProvider) UpdateAllocatedDevices(klog.Logger) {
	p.impl.UpdateAllocatedDevices()
}

func (p devicesProvider) GetAllocatableDevices(klog.Logger) []*podresourcesapi.ContainerDevices {
	return containerDevices(p.impl.GetAllocatableDevices())
}

func (noProvider) GetCPUs(*v1.Pod, *v1.Container) []int64 {
	return nil
}

func (noProvider) GetPodCPUs(string) []int64 {
	return nil
}

func (noProvider) GetMemory(
	klog.Logger, *v1.Pod, *v1.Container,
) []*podresourcesapi.ContainerMemory {
	return nil
}

func (noProvider) GetPodMemory(klog.Logger, string) []*podresourcesapi.ContainerMemory {
	return nil
}

func (noProvider) GetAllocatableMemory(klog.Logger) []*podresourcesapi.ContainerMemory {
	return nil
}

func (noProvider) GetDynamicResources(
	klog.Logger, *v1.Pod, *v1.Container,
) []*podresourcesapi.DynamicResource {
	return nil
}
