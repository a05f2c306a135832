//go:build kubelet1.37

// This file holds every call into the kubelet's packages. Their signatures
// change from one release to the next, so a further version is one more file
// like this one: its own build tag, the same deviceManager.

package main

import (
	"context"
	"errors"
	_ "unsafe" // for go:linkname

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/kubelet/cm/admission"
	"k8s.io/kubernetes/pkg/kubelet/cm/containermap"
	"k8s.io/kubernetes/pkg/kubelet/cm/devicemanager"
	"k8s.io/kubernetes/pkg/kubelet/cm/topologymanager"
	"k8s.io/kubernetes/pkg/kubelet/lifecycle"
)

// newManagerImpl is the kubelet's constructor that takes the path of the
// registration socket; the exported one always uses the directory of the node.
//
// The linker does not compare signatures: look at the original on each version
// bump. The topology is a []cadvisor.Node there. It is always nil here, so the
// element type does not matter, and naming it would drag the cadvisor module of
// this version into the module files of all the others.
//
//go:linkname newManagerImpl k8s.io/kubernetes/pkg/kubelet/cm/devicemanager.newManagerImpl
func newManagerImpl(
	logger klog.Logger, socketPath string, topology []struct{}, affinity topologymanager.Store,
) (*devicemanager.ManagerImpl, error)

// noAffinity is the topology manager's side of an allocation under its default
// policy, "none": no hint, so the devices' NUMA nodes have no say.
type noAffinity struct{}

func (noAffinity) GetAffinity(klog.Logger, string, string) topologymanager.TopologyHint {
	return topologymanager.TopologyHint{}
}
func (noAffinity) GetPolicy() topologymanager.Policy { return topologymanager.NewNonePolicy() }
func (noAffinity) Name() string                      { return "container" }

// sources tells the manager whether the kubelet has heard from the API server.
type sources bool

func (s sources) AllReady() bool { return bool(s) }
func (sources) AddSource(string) {}

// manager is the deviceManager of this kubelet version.
type manager struct {
	impl *devicemanager.ManagerImpl
}

func newDeviceManager(socketPath string) (deviceManager, error) {
	impl, err := newManagerImpl(klog.Background(), socketPath, nil, noAffinity{})
	return manager{impl}, err
}

func (m manager) start(activePods func() []*v1.Pod, ready bool, running []containerRef) error {
	containers, runningIDs := containermap.NewContainerMap(), sets.New[string]()
	for _, c := range running {
		id := c.podUID + "/" + c.container
		containers.Add(c.podUID, c.container, id)
		runningIDs.Insert(id)
	}
	return m.impl.Start(klog.Background(), activePods, sources(ready), containers, runningIDs)
}

func (m manager) stop() error {
	return m.impl.Stop(klog.Background())
}

func (m manager) capacity() (capacity, allocatable v1.ResourceList, deleted []string) {
	return m.impl.GetCapacity(klog.Background())
}

func (m manager) healthyDevices(resource string) []deviceAnswer {
	var devices []deviceAnswer
	for id, device := range m.impl.GetAllocatableDevices(klog.Background())[resource] {
		answer := deviceAnswer{ID: id, NUMANodes: []int64{}}
		for _, node := range device.GetTopology().GetNodes() {
			answer.NUMANodes = append(answer.NUMANodes, node.GetID())
		}
		devices = append(devices, answer)
	}
	return devices
}

func (m manager) allocate(pod *v1.Pod, container *v1.Container) error {
	err := m.impl.Allocate(context.Background(), pod, container, lifecycle.AddOperation)
	if result := admission.GetPodAdmitResult(err); !result.Admit {
		return errors.New(result.Message) // as the pod's status has it
	}
	return nil
}

func (m manager) containerOptions(pod *v1.Pod, container *v1.Container) (containerAnswer, error) {
	options, err := m.impl.GetDeviceRunContainerOptions(context.Background(), pod, container)
	if err != nil {
		return containerAnswer{}, err
	}
	answer := newContainerAnswer()
	if options == nil { // despite what its comment says: a container without devices
		return answer, nil
	}
	for _, env := range options.Envs {
		answer.Envs[env.Name] = env.Value
	}
	for _, mount := range options.Mounts {
		answer.Mounts = append(answer.Mounts,
			mountAnswer{mount.HostPath, mount.ContainerPath, mount.ReadOnly})
	}
	for _, node := range options.Devices {
		answer.Devices = append(answer.Devices,
			deviceNodeAnswer{node.PathOnHost, node.PathInContainer, node.Permissions})
	}
	for _, annotation := range options.Annotations {
		answer.Annotations[annotation.Name] = annotation.Value
	}
	for _, device := range options.CDIDevices {
		answer.CDIDevices = append(answer.CDIDevices, device.Name)
	}
	for resource, devices := range m.impl.GetDevices(string(pod.UID), container.Name) {
		answer.DeviceIDs[resource] = sets.List(sets.KeySet(devices))
	}
	return answer, nil
}

func (m manager) freeInactivePods() {
	m.impl.UpdateAllocatedDevices(klog.Background())
}

func (m manager) updateHealth(pod *v1.Pod, status *v1.PodStatus) {
	m.impl.UpdateAllocatedResourcesStatus(klog.Background(), pod, status)
}
