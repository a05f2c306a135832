package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	pb "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

const (
	dialLimit = 10 * time.Second // the kubelet's
	backlog   = 4096
)

// A kubelet does what the real one's device manager does on the wire, and no more.
type kubelet struct {
	pb.UnimplementedRegistrationServer
	directory string
	server    *grpc.Server
	running   sync.WaitGroup // the streams

	mu       sync.Mutex
	plugins  map[string]*plugin // by resource; the one that registered last
	paths    map[string]*plugin // by socket
	counts   counters
	expected *expectation
}

type counters struct {
	Connected     int `json:"connected"`
	Registrations int `json:"registrations"`
	Messages      int `json:"messages"`
	Ended         int `json:"ended"`
}

// A plugin is one registration: a connection, a stream, and the list that came last.
type plugin struct {
	resource, path string
	connection     *grpc.ClientConn
	client         pb.DevicePluginClient
	ctx            context.Context
	cancel         context.CancelFunc
	devices        []*pb.Device
	messages       int
}

// An expectation is met by a list; it is told when that list had come.
type expectation struct {
	met  func(*plugin) bool
	done chan time.Time
}

func newKubelet(directory string) *kubelet {
	return &kubelet{
		directory: directory,
		plugins:   map[string]*plugin{},
		paths:     map[string]*plugin{},
	}
}

// Start listens on kubelet.sock, with a pause between bind and listen.
func (k *kubelet) start(gap time.Duration) error {
	socket, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return err
	}
	file := os.NewFile(uintptr(socket), "kubelet.sock")
	defer file.Close()
	address := &unix.SockaddrUnix{Name: filepath.Join(k.directory, "kubelet.sock")}
	if err := unix.Bind(socket, address); err != nil {
		return err
	}
	if gap > 0 {
		time.Sleep(gap)
	}
	if err := unix.Listen(socket, backlog); err != nil {
		return err
	}
	listener, err := net.FileListener(file)
	if err != nil {
		return err
	}
	listener.(*net.UnixListener).SetUnlinkOnClose(false) // a kubelet that ends leaves it behind
	k.server = grpc.NewServer(grpc.WaitForHandlers(true))
	pb.RegisterRegistrationServer(k.server, k)
	go k.server.Serve(listener)
	return nil
}

// Stop ends the server and all connections, as the end of the process would.
func (k *kubelet) stop() {
	k.server.Stop()
	k.mu.Lock()
	for _, one := range k.paths {
		one.cancel()
	}
	k.mu.Unlock()
	k.running.Wait()
}

// Clean removes all but directories, as kubelet up to 1.32 does when it starts.
func (k *kubelet) clean() error {
	entries, err := os.ReadDir(k.directory)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if entry.IsDir() {
			continue
		}
		if err := os.Remove(filepath.Join(k.directory, entry.Name())); err != nil && !os.IsNotExist(err) {
			return err
		}
	}
	return nil
}

// Register connects to the plugin and asks for its options before it answers.
func (k *kubelet) Register(ctx context.Context, request *pb.RegisterRequest) (*pb.Empty, error) {
	if request.Version != pb.Version {
		return nil, fmt.Errorf("unsupported version %q", request.Version)
	}
	path := filepath.Join(k.directory, request.Endpoint)
	if err := k.claim(path); err != nil {
		return nil, err
	}
	one, err := connect(ctx, request.ResourceName, path)
	k.mu.Lock()
	defer k.mu.Unlock()
	if err != nil {
		delete(k.paths, path)
		return nil, err
	}
	k.paths[path], k.plugins[one.resource] = one, one
	k.counts.Registrations++
	k.running.Add(1)
	go k.listen(one)
	return &pb.Empty{}, nil
}

// Claim refuses a socket that is connected, as kubelet does from 1.37 on.
func (k *kubelet) claim(path string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if _, taken := k.paths[path]; taken {
		return fmt.Errorf("device plugin already connected: %s", path)
	}
	k.paths[path] = &plugin{cancel: func() {}}
	return nil
}

func connect(ctx context.Context, resource, path string) (*plugin, error) {
	connection, err := grpc.NewClient("unix:"+path,
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithAuthority("localhost"))
	if err != nil {
		return nil, err
	}
	one := &plugin{
		resource: resource, path: path,
		connection: connection, client: pb.NewDevicePluginClient(connection),
	}
	ctx, cancel := context.WithTimeout(ctx, dialLimit)
	defer cancel()
	_, err = one.client.GetDevicePluginOptions(ctx, &pb.Empty{}, grpc.WaitForReady(true))
	if err != nil {
		connection.Close()
		return nil, fmt.Errorf("failed to dial device plugin: %w", err)
	}
	one.ctx, one.cancel = context.WithCancel(context.Background())
	return one, nil
}

func (k *kubelet) listen(one *plugin) {
	defer k.running.Done()
	defer k.forget(one)
	stream, err := one.client.ListAndWatch(one.ctx, &pb.Empty{})
	if err != nil {
		return
	}
	for {
		response, err := stream.Recv()
		if err != nil {
			return
		}
		k.received(one, response.Devices, time.Now())
	}
}

func (k *kubelet) received(one *plugin, devices []*pb.Device, at time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	one.devices = devices
	one.messages++
	k.counts.Messages++
	if k.plugins[one.resource] != one || k.expected == nil || !k.expected.met(one) {
		return
	}
	k.expected.done <- at
	k.expected = nil
}

func (k *kubelet) forget(one *plugin) {
	one.cancel()
	one.connection.Close()
	k.mu.Lock()
	defer k.mu.Unlock()
	k.counts.Ended++
	delete(k.paths, one.path)
	if k.plugins[one.resource] == one {
		delete(k.plugins, one.resource)
	}
}

// Expect asks to be told of the first list from now on that meets a condition; nil for none.
func (k *kubelet) expect(met func(*plugin) bool) <-chan time.Time {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.expected = nil
	if met == nil {
		return nil
	}
	k.expected = &expectation{met: met, done: make(chan time.Time, 1)}
	return k.expected.done
}

// Plugin returns a resource's registration, with the list of this moment and the messages so far.
func (k *kubelet) plugin(resource string) (plugin, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if one, known := k.plugins[resource]; known {
		return *one, nil
	}
	return plugin{}, fmt.Errorf("%s is not registered", resource)
}

func (k *kubelet) counters() counters {
	k.mu.Lock()
	defer k.mu.Unlock()
	counts := k.counts
	counts.Connected = len(k.plugins)
	return counts
}

func (p *plugin) healthy() []string {
	ids := make([]string, 0, len(p.devices))
	for _, device := range p.devices {
		if device.Health == pb.Healthy {
			ids = append(ids, device.ID)
		}
	}
	return ids
}

func (p *plugin) has(id string) bool {
	for _, device := range p.devices {
		if device.ID == id {
			return device.Health == pb.Healthy
		}
	}
	return false
}
