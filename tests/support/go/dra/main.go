// Command dra runs the DRA manager of a real kubelet with its plugin manager, and
// nothing else of it, in any directory and without privileges: it finds drivers by
// their sockets, prepares and unprepares the claims of pods, and keeps a checkpoint.
//
// Tests drive it with JSON lines on its input, one answer each; a kubelet crash is
// the end of this process, and another one in the same directory goes on.
// With -admit it checks a ResourceSlice instead, as the API server does, and with -allocate it
// gives a claim its devices, as the scheduler does.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"
	"k8s.io/klog/v2"
	pluginapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	dynamic "k8s.io/kubernetes/pkg/apis/resource"
	_ "k8s.io/kubernetes/pkg/apis/resource/install"
	"k8s.io/kubernetes/pkg/apis/resource/validation"
	"k8s.io/kubernetes/pkg/kubelet/cm/dra"
	"k8s.io/kubernetes/pkg/kubelet/pluginmanager"
)

const container = "app"

// sources says that the list of active pods is to be trusted.
type sources struct{}

func (sources) AddSource(string) {}
func (sources) AllReady() bool   { return true }

// request is a line of the input: what to do with a pod, by its name.
type request struct {
	Command string `json:"command"` // prepare, unprepare or health
	Pod     string `json:"pod"`
	// Claim is that of the pod's own, or of its extended resource if Resource is set.
	Claim    string `json:"claim"`
	Resource string `json:"resource"`
	// Own is a claim of the pod's own beside that of its extended resource.
	Own string `json:"own"`
}

// answer is a line of the output.
type answer struct {
	Error string   `json:"error,omitempty"`
	CDI   []string `json:"cdi"` // the names of CDI devices that the container runtime gets
	// Health is that of the devices of a pod, as its status shows it.
	Health []v1.ResourceHealth `json:"health,omitempty"`
}

// pods are the active ones, by UID.
type pods struct {
	sync.Mutex
	active map[types.UID]*v1.Pod
}

func (p *pods) list() []*v1.Pod {
	p.Lock()
	defer p.Unlock()
	var all []*v1.Pod
	for _, pod := range p.active {
		all = append(all, pod)
	}
	return all
}

func (p *pods) set(pod *v1.Pod, active bool) {
	p.Lock()
	defer p.Unlock()
	if active {
		p.active[pod.UID] = pod
	} else {
		delete(p.active, pod.UID)
	}
}

func main() {
	klog.InitFlags(nil) // -v and its kin; logs go to stderr
	root := flag.String("root", "", "kubelet's directory")
	server := flag.String("api", "", "the URL of the API server")
	nodeName := flag.String("node", "", "the name of the node")
	running := flag.String("running", "", "the names of pods that run already, separated by commas")
	admits := flag.Bool("admit", false, "only print the ResourceSlice of the input as it would be kept")
	allocates := flag.Bool("allocate", false, "only print the devices of the claim of the input")
	flag.Parse()
	work := func() error { return run(*root, *server, *nodeName, *running) }
	switch {
	case *admits:
		work = admit
	case *allocates:
		work = func() error { return allocate(*nodeName) }
	}
	if err := work(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// admit prints the ResourceSlice of the input as an API server keeps it, or returns its refusal.
func admit() error {
	text, err := io.ReadAll(os.Stdin)
	if err != nil {
		return err
	}
	slice, err := runtime.Decode(legacyscheme.Codecs.UniversalDeserializer(), text)
	if err != nil {
		return err
	}
	kept := &dynamic.ResourceSlice{}
	if err := legacyscheme.Scheme.Convert(slice, kept, nil); err != nil {
		return err
	}
	if err := validation.ValidateResourceSlice(kept).ToAggregate(); err != nil {
		return err
	}
	return legacyscheme.Codecs.LegacyCodec(resourcev1.SchemeGroupVersion).Encode(kept, os.Stdout)
}

// driverClasses are DeviceClasses: each has the name of the driver whose devices it has.
type driverClasses struct{}

func (driverClasses) List() ([]*resourcev1.DeviceClass, error) { return nil, nil }
func (driverClasses) Get(name string) (*resourcev1.DeviceClass, error) {
	selector := &resourcev1.CELDeviceSelector{Expression: fmt.Sprintf("device.driver == %q", name)}
	return &resourcev1.DeviceClass{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       resourcev1.DeviceClassSpec{Selectors: []resourcev1.DeviceSelector{{CEL: selector}}},
	}, nil
}

// allocate prints what the claim of the input gets on a node, of the slices of the input: a result
// for each claim, null where no devices fit.
func allocate(nodeName string) error {
	var asked struct {
		Slices []*resourcev1.ResourceSlice `json:"slices"`
		Claim  *resourcev1.ResourceClaim   `json:"claim"`
	}
	if err := json.NewDecoder(os.Stdin).Decode(&asked); err != nil {
		return err
	}
	ctx := context.Background()
	allocator, err := structured.NewAllocator(ctx, structured.Features{}, structured.AllocatedState{},
		driverClasses{}, asked.Slices, cel.NewCache(10, cel.Features{}))
	if err != nil {
		return err
	}
	node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName}}
	results, err := allocator.Allocate(ctx, node, []*resourcev1.ResourceClaim{asked.Claim})
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(results)
}

func run(root, server, nodeName, running string) error {
	ctx := context.Background()
	client, err := kubernetes.NewForConfig(&rest.Config{Host: server, ContentConfig: rest.ContentConfig{
		AcceptContentTypes: "application/json", ContentType: "application/json"}})
	if err != nil {
		return err
	}
	known := &pods{active: map[types.UID]*v1.Pod{}}
	for _, name := range strings.FieldsFunc(running, func(r rune) bool { return r == ',' }) {
		known.set(newPod(request{Pod: name}), true)
	}
	manager, err := dra.NewManager(klog.Background(), client, root)
	if err != nil {
		return err
	}
	node := func(ctx context.Context) (*v1.Node, error) {
		return client.CoreV1().Nodes().Get(ctx, nodeName, metav1.GetOptions{})
	}
	if err := manager.Start(ctx, known.list, node, sources{}); err != nil {
		return err
	}
	plugins := pluginmanager.NewPluginManager(
		filepath.Join(root, "plugins_registry"), &record.FakeRecorder{})
	plugins.AddHandler(pluginapi.DRAPlugin, manager.GetWatcherHandler())
	go plugins.Run(ctx, sources{}, make(chan struct{}))

	lines, answers := bufio.NewScanner(os.Stdin), json.NewEncoder(os.Stdout)
	for lines.Scan() {
		var asked request
		if err := json.Unmarshal(lines.Bytes(), &asked); err != nil {
			return err
		}
		if err := answers.Encode(do(ctx, manager, known, asked)); err != nil {
			return err
		}
	}
	return lines.Err()
}

func do(ctx context.Context, manager *dra.Manager, known *pods, asked request) answer {
	pod := newPod(asked)
	switch asked.Command {
	case "prepare":
		known.set(pod, true)
		if err := manager.PrepareResources(ctx, pod); err != nil {
			return answer{Error: err.Error()}
		}
		info, err := manager.GetResources(pod, &pod.Spec.Containers[0])
		if err != nil {
			return answer{Error: err.Error()}
		}
		names := []string{}
		for _, device := range info.CDIDevices {
			names = append(names, device.Name)
		}
		return answer{CDI: names}
	case "unprepare":
		if err := manager.UnprepareResources(ctx, pod); err != nil {
			return answer{Error: err.Error()}
		}
		known.set(pod, false)
		return answer{}
	case "health":
		status := &v1.PodStatus{ContainerStatuses: []v1.ContainerStatus{{Name: container}}}
		updateHealth(manager, pod, status)
		shown := answer{}
		for _, resource := range status.ContainerStatuses[0].AllocatedResourcesStatus {
			shown.Health = append(shown.Health, resource.Resources...)
		}
		return shown
	}
	return answer{Error: "no such command: " + asked.Command}
}

// updateHealth sets the health of devices in the status of a pod, by the manager of either version.
func updateHealth(manager any, pod *v1.Pod, status *v1.PodStatus) {
	switch updater := manager.(type) {
	case interface {
		UpdateAllocatedResourcesStatus(*v1.Pod, *v1.PodStatus)
	}: // 1.36
		updater.UpdateAllocatedResourcesStatus(pod, status)
	case interface {
		UpdateAllocatedResourcesStatus(klog.Logger, *v1.Pod, *v1.PodStatus)
	}:
		updater.UpdateAllocatedResourcesStatus(klog.Background(), pod, status)
	}
}

// newPod makes a pod with one container, which has one claim.
func newPod(asked request) *v1.Pod {
	pod := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: asked.Pod, Namespace: "default", UID: types.UID("pod-" + asked.Pod)},
		Spec: v1.PodSpec{Containers: []v1.Container{{Name: container}}},
	}
	switch {
	case asked.Resource != "":
		pod.Spec.Containers[0].Resources.Requests = v1.ResourceList{
			v1.ResourceName(asked.Resource): resource.MustParse("1")}
		pod.Status.ExtendedResourceClaimStatus = &v1.PodExtendedResourceClaimStatus{
			ResourceClaimName: asked.Claim,
			RequestMappings: []v1.ContainerExtendedResourceRequest{
				{ContainerName: container, ResourceName: asked.Resource, RequestName: "r"}},
		}
	case asked.Claim != "":
		asked.Own = asked.Claim
	}
	if asked.Own != "" {
		pod.Spec.ResourceClaims = []v1.PodResourceClaim{{Name: "c", ResourceClaimName: &asked.Own}}
		pod.Spec.Containers[0].Resources.Claims = []v1.ResourceClaim{{Name: "c"}}
	}
	return pod
}
