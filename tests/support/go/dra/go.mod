// Marks the root of the module and is otherwise not read: the sources here are
// built against several kubelet versions, each with a module file of its own
// (v1.37.mod and v1.37.sum; see the top of v1.37.mod). Use
//
//	python build.py --out DIR 1.36 1.37
//	go vet -modfile=v1.37.mod -tags kubelet1.37 .
module devhost.test/dra
