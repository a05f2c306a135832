package main

import (
	"context"
	"fmt"
	"log"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	pb "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

const (
	atOnce   = 32
	deadline = 20 * time.Second
	probe    = 2 * time.Millisecond // kubelet.sock appears before it listens
)

// A registrar serves every resource and registers it, anew for each kubelet.sock that appears.
type registrar struct {
	directory, kubelet string
	resources          []*resource
	due                chan struct{}
	servers            []*grpc.Server
	serial             int
}

func newRegistrar(directory, kubelet string, resources []*resource) *registrar {
	due := make(chan struct{}, 1)
	due <- struct{}{}
	return &registrar{directory: directory, kubelet: kubelet, resources: resources, due: due}
}

// Again has everything registered once more.
func (r *registrar) again() {
	select {
	case r.due <- struct{}{}:
	default:
	}
}

func (r *registrar) run() {
	for range r.due {
		r.connected()
		for _, server := range r.servers {
			if server != nil {
				server.Stop()
			}
		}
		r.serial++
		if err := r.register(); err != nil {
			log.Print(err)
			time.Sleep(probe)
			r.again()
		}
	}
}

// Connected waits for a kubelet that accepts; gRPC would wait for a second after a refusal.
func (r *registrar) connected() {
	for {
		connection, err := net.Dial("unix", r.kubelet)
		if err == nil {
			connection.Close()
			return
		}
		time.Sleep(probe)
	}
}

func (r *registrar) register() error {
	connection, err := grpc.NewClient("unix:"+r.kubelet,
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithAuthority("localhost"))
	if err != nil {
		return err
	}
	defer connection.Close()
	client := pb.NewRegistrationClient(connection)
	r.servers = make([]*grpc.Server, len(r.resources))
	errs := make(chan error, len(r.resources))
	free := make(chan struct{}, atOnce)
	var all sync.WaitGroup
	for i, one := range r.resources {
		free <- struct{}{}
		all.Go(func() {
			errs <- r.serve(client, i, one)
			<-free
		})
	}
	all.Wait()
	close(errs)
	for err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

func (r *registrar) serve(client pb.RegistrationClient, i int, one *resource) error {
	// A name that was never used: kubelet 1.37 refuses a path that is still connected.
	endpoint := fmt.Sprintf("reference-%d-%d-%d.sock", os.Getpid(), i, r.serial)
	listener, err := net.Listen("unix", filepath.Join(r.directory, endpoint))
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	r.servers[i] = server
	pb.RegisterDevicePluginServer(server, one)
	go server.Serve(listener)
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	defer cancel()
	_, err = client.Register(ctx, &pb.RegisterRequest{
		Version: pb.Version, Endpoint: endpoint, ResourceName: one.Name,
	})
	return err
}
