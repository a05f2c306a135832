package main

import (
	"sync"

	"k8s.io/kubernetes/pkg/kubelet/cm/topologymanager"
	"k8s.io/kubernetes/pkg/kubelet/cm/topologymanager/bitmask"
)

// affinities is the topology manager's side of an allocation: the NUMA nodes that it
// has chosen for a container. There is no topology manager, so tests choose. For
// other containers it is as under the default policy, "none": no hint, and the
// devices' NUMA nodes have no say. GetAffinity is in the file of the version.
type affinities struct {
	mutex sync.Mutex
	nodes map[containerRef]bitmask.BitMask
}

func newAffinities() *affinities {
	return &affinities{nodes: map[containerRef]bitmask.BitMask{}}
}

func (*affinities) GetPolicy() topologymanager.Policy { return topologymanager.NewNonePolicy() }
func (*affinities) Name() string                      { return "container" }

func (a *affinities) set(container containerRef, nodes []int) error {
	mask, err := bitmask.NewBitMask(nodes...)
	if err != nil {
		return err
	}
	a.mutex.Lock()
	defer a.mutex.Unlock()
	if len(nodes) == 0 {
		delete(a.nodes, container)
	} else {
		a.nodes[container] = mask
	}
	return nil
}

func (a *affinities) hint(podUID, container string) topologymanager.TopologyHint {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	// No entry is a nil interface, which is what the device manager looks for.
	mask := a.nodes[containerRef{podUID, container}]
	return topologymanager.TopologyHint{NUMANodeAffinity: mask, Preferred: mask != nil}
}
