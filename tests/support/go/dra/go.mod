// Marks the root of the module and is otherwise not read: the sources here are
// built against several kubelet versions, each with a module file of its own
// (v1.37.mod and v1.37.sum). Use
//
//	go vet -modfile=v1.37.mod .
module devhost.test/dra
