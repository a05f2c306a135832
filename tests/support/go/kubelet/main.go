// Command kubelet runs the device manager of a real kubelet, and nothing else of
// it, in any directory and without privileges: the registration server, the
// ListAndWatch client, the checkpoint, allocation, device health and the
// pod-resources API. Tests drive it with JSON lines; see protocol.go.
//
// A kubelet crash is the driver killing this process, which leaves a dead
// kubelet.sock behind, and starting another one in the same directory. A panic
// of the kubelet's code ends the process, as it ends a kubelet.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"io"
	"os"
	"path/filepath"

	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
)

// deviceManager is the part of a kubelet under test; see manager.go.
type deviceManager interface {
	// start reads the checkpoint, cleans the directory and serves
	// registrations. ready says whether the list of active pods is to be
	// trusted; running are the containers found running at kubelet start.
	start(activePods func() []*v1.Pod, ready bool, running []containerRef) error
	stop() error
	capacity() (capacity, allocatable v1.ResourceList, deleted []string)
	healthyDevices(resource string) []deviceAnswer
	// allocate must not run twice at a time: a kubelet admits pods one by one.
	allocate(pod *v1.Pod, container *v1.Container) error
	containerOptions(pod *v1.Pod, container *v1.Container) (containerAnswer, error)
	freeInactivePods()
	updateHealth(pod *v1.Pod, status *v1.PodStatus)
	// hints are what the topology manager would choose from, for each resource.
	hints(pod *v1.Pod, container *v1.Container) map[string][]hintAnswer
	// setAffinity is the topology manager's choice for a container not yet admitted.
	setAffinity(container containerRef, nodes []int) error
	// servePodResources serves at a path until the function that it returns is called.
	servePodResources(path string, activePods func() []*v1.Pod) (stop func(), err error)
	// expire ends the five minutes for which the resource of an ended plugin is kept.
	expire(resource string) error
}

// containerRef names a container of a pod.
type containerRef struct {
	podUID, container string
}

func main() {
	klog.InitFlags(nil) // -v and its kin; logs go to stderr
	dir := flag.String("dir", "", "the device-plugins directory; kubelet.sock is made in it")
	podResources := flag.String("pod-resources", "", "the socket of the pod-resources API; none if empty")
	numaNodes := flag.Int("numa-nodes", 0, "how many NUMA nodes the machine has")
	flag.Parse()
	if *dir == "" || flag.NArg() > 0 {
		flag.Usage()
		os.Exit(2)
	}
	absolute, err := filepath.Abs(*dir)
	if err != nil {
		klog.Fatal(err)
	}
	replies := os.Stdout
	os.Stdout = os.Stderr // nothing else may print between the replies
	serve(&kubelet{
		socketPath:   filepath.Join(absolute, "kubelet.sock"),
		podResources: *podResources,
		numaNodes:    *numaNodes,
	}, os.Stdin, replies)
}

// serve answers the requests of in on out until in ends. It ends without a word
// to the plugins, so that a test run that was killed leaves no process behind.
func serve(k *kubelet, in io.Reader, out io.Writer) {
	replies := make(chan reply)
	go func() {
		encoder := json.NewEncoder(out) // one line a value
		for r := range replies {
			if err := encoder.Encode(r); err != nil {
				klog.Fatal(err)
			}
		}
	}()
	requests := json.NewDecoder(in)
	requests.DisallowUnknownFields()
	for {
		var r request
		if err := requests.Decode(&r); errors.Is(err, io.EOF) {
			return
		} else if err != nil {
			klog.Fatalf("not a request: %v", err)
		}
		go func() { replies <- k.answer(r) }()
	}
}
