//go:build kubelet1.32

package main

import (
	_ "unsafe" // for go:linkname

	"k8s.io/kubernetes/pkg/kubelet/cm/devicemanager"
	"k8s.io/kubernetes/pkg/kubelet/cm/topologymanager"
)

// managerImpl is the kubelet's own: manager.go calls it as it is here.
type managerImpl struct{ *devicemanager.ManagerImpl }

//go:linkname newManagerImpl k8s.io/kubernetes/pkg/kubelet/cm/devicemanager.newManagerImpl
func newManagerImpl(
	socketPath string, topology []struct{}, affinity topologymanager.Store,
) (*devicemanager.ManagerImpl, error)

func newImpl(socketPath string) (managerImpl, error) {
	impl, err := newManagerImpl(socketPath, nil, noAffinity{})
	return managerImpl{impl}, err
}

func (noAffinity) GetAffinity(string, string) topologymanager.TopologyHint {
	return topologymanager.TopologyHint{}
}
