// This file and the manager_1_NN.go hold every call into the kubelet's packages.
// Their signatures change from one release to the next; here they are called as
// the oldest of our versions, 1.32, has them, and the file of a newer version wraps
// what has changed since.

package main

import (
	"errors"
	"fmt"
	"reflect"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/kubernetes/pkg/kubelet/cm/admission"
	"k8s.io/kubernetes/pkg/kubelet/cm/containermap"
)

// sources tells the manager whether the kubelet has heard from the API server.
type sources bool

func (s sources) AllReady() bool { return bool(s) }
func (sources) AddSource(string) {}

// manager is the deviceManager of this kubelet version.
type manager struct {
	impl       managerImpl
	affinities *affinities
}

// newDeviceManager uses the kubelet's unexported constructor, newManagerImpl, which
// takes the path of the registration socket: the exported one always uses the
// directory of the node. Each version's file declares it by go:linkname.
//
// The linker does not compare signatures: look at the original on each version
// bump. The topology is a []cadvisor.Node there. It is always nil here, so the
// element type does not matter, and naming it would drag the cadvisor module of
// one version into the module files of all the others. The constructor takes no
// more from it than the nodes' ids, which are set here instead.
func newDeviceManager(socketPath string, numaNodes int) (deviceManager, error) {
	affinities := newAffinities()
	impl, err := newImpl(socketPath, affinities)
	if err != nil {
		return nil, err
	}
	field := reflect.ValueOf(impl.ManagerImpl).Elem().FieldByName("numaNodes")
	known := (*[]int)(field.Addr().UnsafePointer())
	for id := range numaNodes {
		*known = append(*known, id)
	}
	return manager{impl, affinities}, nil
}

func (m manager) start(activePods func() []*v1.Pod, ready bool, running []containerRef) error {
	containers, runningIDs := containermap.NewContainerMap(), sets.New[string]()
	for _, c := range running {
		id := c.podUID + "/" + c.container
		containers.Add(c.podUID, c.container, id)
		runningIDs.Insert(id)
	}
	return m.impl.Start(activePods, sources(ready), containers, runningIDs)
}

func (m manager) stop() error {
	return m.impl.Stop()
}

func (m manager) capacity() (capacity, allocatable v1.ResourceList, deleted []string) {
	return m.impl.GetCapacity()
}

func (m manager) healthyDevices(resource string) []deviceAnswer {
	var devices []deviceAnswer
	for id, device := range m.impl.GetAllocatableDevices()[resource] {
		answer := deviceAnswer{ID: id, NUMANodes: []int64{}}
		for _, node := range device.GetTopology().GetNodes() {
			answer.NUMANodes = append(answer.NUMANodes, node.GetID())
		}
		devices = append(devices, answer)
	}
	return devices
}

func (m manager) allocate(pod *v1.Pod, container *v1.Container) error {
	err := m.impl.Allocate(pod, container)
	if result := admission.GetPodAdmitResult(err); !result.Admit {
		return errors.New(result.Message) // as the pod's status has it
	}
	return nil
}

func (m manager) containerOptions(pod *v1.Pod, container *v1.Container) (containerAnswer, error) {
	options, err := m.impl.GetDeviceRunContainerOptions(pod, container)
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
	m.impl.UpdateAllocatedDevices()
}

func (m manager) updateHealth(pod *v1.Pod, status *v1.PodStatus) {
	m.impl.UpdateAllocatedResourcesStatus(pod, status)
}

func (m manager) hints(pod *v1.Pod, container *v1.Container) map[string][]hintAnswer {
	answer := map[string][]hintAnswer{}
	for resource, hints := range m.impl.GetTopologyHints(pod, container) {
		answer[resource] = nil // the kubelet tells nil, any node will do, from empty, none will
		if hints != nil {
			answer[resource] = []hintAnswer{}
		}
		for _, hint := range hints {
			answer[resource] = append(answer[resource],
				hintAnswer{hint.NUMANodeAffinity.GetBits(), hint.Preferred})
		}
	}
	return answer
}

func (m manager) setAffinity(container containerRef, nodes []int) error {
	return m.affinities.set(container, nodes)
}

// expire does what five minutes would do, which the kubelet has as a constant: it
// moves the end of a plugin into the past. The names are the same in all our
// versions, and one that is gone panics here.
func (m manager) expire(resource string) error {
	impl := reflect.ValueOf(m.impl.ManagerImpl).Elem()
	mutex := (*sync.Mutex)(impl.FieldByName("mutex").Addr().UnsafePointer())
	mutex.Lock()
	defer mutex.Unlock()
	info := impl.FieldByName("endpoints").MapIndex(reflect.ValueOf(resource))
	if !info.IsValid() {
		return fmt.Errorf("the kubelet knows no resource %q", resource)
	}
	endpoint := info.FieldByName("e").Elem().Elem()
	guard := (*sync.Mutex)(endpoint.FieldByName("mutex").Addr().UnsafePointer())
	guard.Lock()
	defer guard.Unlock()
	ended := (*time.Time)(endpoint.FieldByName("stopTime").Addr().UnsafePointer())
	if ended.IsZero() {
		return fmt.Errorf("the plugin of %q has not ended", resource)
	}
	*ended = ended.Add(-time.Hour)
	return nil
}
