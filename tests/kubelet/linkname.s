// Empty on purpose: a package with an assembly file may declare functions
// without a body, as manager.go does with go:linkname.
