package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// request is a line of stdin. Requests may overlap; each is answered by a line
// with its id. What a command takes besides, and what its reply carries:
//
//	pods             pods                           -        the active pods, given before start
//	start            [sourcesReady]                 -
//	capacity         -                              capacity, allocatable, deleted
//	wait             resource, capacity,
//	                 allocatable, timeout           -        until the counts are so; none = absent
//	devices          resource                       devices  the healthy ones
//	admit            pod                            -        as if the pod came from the API server
//	hints            pod                            hints    for its containers; not admitted by it
//	affinity         uid, container, nodes          -        NUMA nodes for it, before admit; none = any
//	start_container  uid, container                 container
//	free             uid                            -        as if the pod had ended
//	status           uid                            health
//	expire           resource                       -        as if its plugin's end were long ago
//	stop             -                              -
type request struct {
	ID           int64     `json:"id"`
	Cmd          string    `json:"cmd"`
	Pods         []podSpec `json:"pods"`
	SourcesReady *bool     `json:"sourcesReady"` // true if not given
	Resource     string    `json:"resource"`
	Capacity     *int64    `json:"capacity"`
	Allocatable  *int64    `json:"allocatable"`
	Timeout      float64   `json:"timeout"` // seconds
	Pod          podSpec   `json:"pod"`
	UID          string    `json:"uid"`
	Container    string    `json:"container"`
	Nodes        []int     `json:"nodes"`
}

type podSpec struct {
	UID        string          `json:"uid"`
	Name       string          `json:"name"`
	Namespace  string          `json:"namespace"`
	Running    bool            `json:"running"` // its containers run; only for "pods"
	Containers []containerSpec `json:"containers"`
}

type containerSpec struct {
	Name    string           `json:"name"`
	Limits  map[string]int64 `json:"limits"`
	Init    bool             `json:"init"`
	Sidecar bool             `json:"sidecar"` // an init container that goes on running
}

// reply is a line of stdout. Fields that a command does not answer are left out.
type reply struct {
	ID    int64  `json:"id"`
	OK    bool   `json:"ok"`
	Error string `json:"error,omitempty"`

	*capacityAnswer
	Devices   *[]deviceAnswer  `json:"devices,omitempty"`
	Container *containerAnswer `json:"container,omitempty"`
	Health    healthAnswer     `json:"health,omitempty"`
	Hints     hintsAnswer      `json:"hints,omitempty"`
}

type capacityAnswer struct {
	Capacity    map[string]int64 `json:"capacity"`
	Allocatable map[string]int64 `json:"allocatable"`
	Deleted     []string         `json:"deleted"`
}

type deviceAnswer struct {
	ID        string  `json:"id"`
	NUMANodes []int64 `json:"numaNodes"`
}

// containerAnswer is what the container runtime would get.
type containerAnswer struct {
	Envs        map[string]string   `json:"envs"`
	Mounts      []mountAnswer       `json:"mounts"`
	Devices     []deviceNodeAnswer  `json:"devices"`
	Annotations map[string]string   `json:"annotations"`
	CDIDevices  []string            `json:"cdiDevices"`
	DeviceIDs   map[string][]string `json:"deviceIds"` // of each resource, sorted
}

type mountAnswer struct {
	HostPath      string `json:"hostPath"`
	ContainerPath string `json:"containerPath"`
	ReadOnly      bool   `json:"readOnly"`
}

type deviceNodeAnswer struct {
	HostPath      string `json:"hostPath"`
	ContainerPath string `json:"containerPath"`
	Permissions   string `json:"permissions"`
}

// healthAnswer is container → resource → device id → health.
type healthAnswer map[string]map[string]map[string]string

// hintsAnswer is container → resource → hints: null if any NUMA node will do, empty
// if there are not enough devices.
type hintsAnswer map[string]map[string][]hintAnswer

// hintAnswer is a set of NUMA nodes whose devices would do; the smallest sets that
// could ever do are preferred.
type hintAnswer struct {
	Nodes     []int `json:"nodes"`
	Preferred bool  `json:"preferred"`
}

// newContainerAnswer makes an answer whose empty fields are written as {} and [].
func newContainerAnswer() containerAnswer {
	return containerAnswer{
		Envs:        map[string]string{},
		Mounts:      []mountAnswer{},
		Devices:     []deviceNodeAnswer{},
		Annotations: map[string]string{},
		CDIDevices:  []string{},
		DeviceIDs:   map[string][]string{},
	}
}

// kubelet is the device manager and the pods of its node.
type kubelet struct {
	socketPath   string
	podResources string // the path of another socket, or none
	numaNodes    int

	// admission lets one pod in at a time, as a kubelet does: its device
	// manager counts on that.
	admission sync.Mutex

	mutex   sync.Mutex // guards what follows; never held during a call of the manager
	manager deviceManager
	pods    []*v1.Pod // the active ones
	running []containerRef
	unserve func() // ends the pod-resources API; nil if it is not served
}

func (k *kubelet) answer(r request) reply {
	answer, err := k.run(r)
	if err != nil {
		answer = reply{Error: err.Error()}
	}
	answer.ID, answer.OK = r.ID, err == nil
	return answer
}

func (k *kubelet) run(r request) (reply, error) {
	switch r.Cmd {
	case "pods":
		return reply{}, k.setPods(r.Pods)
	case "start":
		return reply{}, k.start(r.SourcesReady == nil || *r.SourcesReady)
	}
	k.mutex.Lock()
	manager := k.manager
	k.mutex.Unlock()
	if manager == nil {
		return reply{}, fmt.Errorf("%q before start", r.Cmd)
	}
	switch r.Cmd {
	case "capacity":
		return reply{capacityAnswer: capacityOf(manager)}, nil
	case "wait":
		timeout := time.Duration(r.Timeout * float64(time.Second))
		return reply{}, wait(manager, r.Resource, count(r.Capacity), count(r.Allocatable), timeout)
	case "devices":
		devices := append([]deviceAnswer{}, manager.healthyDevices(r.Resource)...)
		slices.SortFunc(devices, func(a, b deviceAnswer) int { return strings.Compare(a.ID, b.ID) })
		return reply{Devices: &devices}, nil
	case "admit":
		return reply{}, k.admit(manager, r.Pod.pod())
	case "hints":
		return reply{Hints: k.hints(manager, r.Pod.pod())}, nil
	case "affinity":
		return reply{}, manager.setAffinity(containerRef{r.UID, r.Container}, r.Nodes)
	case "start_container":
		answer, err := k.startContainer(manager, r.UID, r.Container)
		return reply{Container: &answer}, err
	case "free":
		if !k.removePod(r.UID) {
			return reply{}, fmt.Errorf("no active pod with uid %q", r.UID)
		}
		manager.freeInactivePods()
		return reply{}, nil
	case "status":
		health, err := k.health(manager, r.UID)
		return reply{Health: health}, err
	case "expire":
		return reply{}, manager.expire(r.Resource)
	case "stop":
		return reply{}, k.stop(manager)
	}
	return reply{}, fmt.Errorf("no such command: %q", r.Cmd)
}

func (k *kubelet) setPods(specs []podSpec) error {
	k.mutex.Lock()
	defer k.mutex.Unlock()
	if k.manager != nil {
		return errors.New("pods after start: use admit and free")
	}
	k.pods, k.running = nil, nil
	for _, spec := range specs {
		k.pods = append(k.pods, spec.pod())
		for _, c := range spec.Containers {
			if spec.Running && (c.Sidecar || !c.Init) { // others have done their work
				k.running = append(k.running, containerRef{spec.UID, c.Name})
			}
		}
	}
	return nil
}

func (k *kubelet) start(sourcesReady bool) error {
	manager, err := newDeviceManager(k.socketPath, k.numaNodes)
	if err != nil {
		return err
	}
	k.mutex.Lock()
	if k.manager != nil {
		k.mutex.Unlock()
		return errors.New("started already: a restart is another process")
	}
	k.manager = manager
	running := k.running
	k.mutex.Unlock()
	if err := manager.start(k.activePods, sourcesReady, running); err != nil {
		return err
	}
	if k.podResources == "" {
		return nil
	}
	unserve, err := manager.servePodResources(k.podResources, k.activePods)
	k.mutex.Lock()
	k.unserve = unserve
	k.mutex.Unlock()
	return err
}

func (k *kubelet) stop(manager deviceManager) error {
	k.mutex.Lock()
	unserve := k.unserve
	k.unserve = nil
	k.mutex.Unlock()
	if unserve != nil {
		unserve()
	}
	return manager.stop()
}

// admit allocates the devices of all containers of a pod, in the kubelet's
// order. A rejected pod has failed for good, so it is no longer active; what was
// allocated to it goes back at the next allocation, as in a kubelet.
func (k *kubelet) admit(manager deviceManager, pod *v1.Pod) error {
	k.admission.Lock()
	defer k.admission.Unlock()
	k.addPod(pod)
	for _, c := range containersOf(pod) {
		if err := manager.allocate(pod, c); err != nil {
			k.removePod(string(pod.UID))
			return err
		}
	}
	return nil
}

// hints asks for all containers of a pod, as of now: to allocate one of them may
// change the hints for the next.
func (k *kubelet) hints(manager deviceManager, pod *v1.Pod) hintsAnswer {
	k.admission.Lock() // hints are part of an admission
	defer k.admission.Unlock()
	answer := hintsAnswer{}
	for _, c := range containersOf(pod) {
		answer[c.Name] = manager.hints(pod, c)
	}
	return answer
}

func (k *kubelet) startContainer(m deviceManager, uid, name string) (containerAnswer, error) {
	pod, err := k.pod(uid)
	if err != nil {
		return containerAnswer{}, err
	}
	for _, c := range containersOf(pod) {
		if c.Name == name {
			return m.containerOptions(pod, c)
		}
	}
	return containerAnswer{}, fmt.Errorf("pod %q has no container %q", uid, name)
}

// health is the allocatedResourcesStatus of a pod's status: app containers only.
func (k *kubelet) health(manager deviceManager, uid string) (healthAnswer, error) {
	pod, err := k.pod(uid)
	if err != nil {
		return nil, err
	}
	var status v1.PodStatus
	for _, c := range pod.Spec.Containers {
		status.ContainerStatuses = append(status.ContainerStatuses, v1.ContainerStatus{Name: c.Name})
	}
	manager.updateHealth(pod, &status)
	health := healthAnswer{}
	for _, c := range status.ContainerStatuses {
		health[c.Name] = map[string]map[string]string{}
		for _, r := range c.AllocatedResourcesStatus {
			devices := map[string]string{}
			for _, d := range r.Resources {
				devices[string(d.ResourceID)] = string(d.Health)
			}
			health[c.Name][string(r.Name)] = devices
		}
	}
	return health, nil
}

func (k *kubelet) activePods() []*v1.Pod {
	k.mutex.Lock()
	defer k.mutex.Unlock()
	return slices.Clone(k.pods)
}

func (k *kubelet) pod(uid string) (*v1.Pod, error) {
	for _, pod := range k.activePods() {
		if string(pod.UID) == uid {
			return pod, nil
		}
	}
	return nil, fmt.Errorf("no active pod with uid %q", uid)
}

// addPod makes a pod active. A restarted kubelet admits the pods it knows once more;
// such a pod stays active throughout, or else it would lose its devices to whoever
// asks for the list of pods meanwhile.
func (k *kubelet) addPod(pod *v1.Pod) {
	k.mutex.Lock()
	defer k.mutex.Unlock()
	for i := range k.pods {
		if k.pods[i].UID == pod.UID {
			k.pods[i] = pod
			return
		}
	}
	k.pods = append(k.pods, pod)
}

// removePod takes a pod off the active ones and tells whether it was there.
func (k *kubelet) removePod(uid string) bool {
	k.mutex.Lock()
	defer k.mutex.Unlock()
	before := len(k.pods)
	k.pods = slices.DeleteFunc(k.pods, func(p *v1.Pod) bool { return string(p.UID) == uid })
	return len(k.pods) < before
}

// pod makes the Kubernetes object, as far as the device manager looks at it.
func (s podSpec) pod() *v1.Pod {
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{
		UID: types.UID(s.UID), Name: s.Name, Namespace: s.Namespace,
	}}
	for _, c := range s.Containers {
		list := v1.ResourceList{}
		for name, n := range c.Limits {
			list[v1.ResourceName(name)] = *resource.NewQuantity(n, resource.DecimalSI)
		}
		container := v1.Container{
			Name: c.Name,
			// The API server makes the requests of extended resources equal to the limits.
			Resources: v1.ResourceRequirements{Limits: list, Requests: list},
		}
		if c.Sidecar {
			always := v1.ContainerRestartPolicyAlways
			container.RestartPolicy = &always
		}
		if c.Init || c.Sidecar {
			pod.Spec.InitContainers = append(pod.Spec.InitContainers, container)
		} else {
			pod.Spec.Containers = append(pod.Spec.Containers, container)
		}
	}
	return pod
}

// containersOf lists the containers in the order of admission: init containers first.
func containersOf(pod *v1.Pod) []*v1.Container {
	var containers []*v1.Container
	for i := range pod.Spec.InitContainers {
		containers = append(containers, &pod.Spec.InitContainers[i])
	}
	for i := range pod.Spec.Containers {
		containers = append(containers, &pod.Spec.Containers[i])
	}
	return containers
}

// absent is the count of a resource that the kubelet does not know.
const absent = -1

// count reads a number of a request, where null stands for absent.
func count(n *int64) int64 {
	if n == nil {
		return absent
	}
	return *n
}

func counts(list v1.ResourceList) map[string]int64 {
	numbers := map[string]int64{}
	for name, quantity := range list {
		numbers[string(name)] = quantity.Value()
	}
	return numbers
}

// capacityOf is a tick of the kubelet's node status: as there, a resource whose
// plugin ended five minutes ago is told as deleted once, and forgotten.
func capacityOf(manager deviceManager) *capacityAnswer {
	capacity, allocatable, deleted := manager.capacity()
	return &capacityAnswer{counts(capacity), counts(allocatable), append([]string{}, deleted...)}
}

// wait polls until a resource has these counts. Polling is right here: the
// kubelet tells nobody of a change, it looks every ten seconds.
func wait(
	manager deviceManager, name string, capacity, allocatable int64, timeout time.Duration,
) error {
	lookup := func(numbers map[string]int64) int64 {
		if n, ok := numbers[name]; ok {
			return n
		}
		return absent
	}
	deadline := time.Now().Add(timeout)
	for {
		seen := capacityOf(manager)
		c, a := lookup(seen.Capacity), lookup(seen.Allocatable)
		if c == capacity && a == allocatable {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s: expected %s, last saw %s after %v",
				name, show(capacity, allocatable), show(c, a), timeout)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func show(capacity, allocatable int64) string {
	if capacity == absent && allocatable == absent {
		return "no such resource"
	}
	return fmt.Sprintf("capacity %d and allocatable %d", capacity, allocatable)
}
