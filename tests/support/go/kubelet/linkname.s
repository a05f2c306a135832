// Empty on purpose: a package with an assembly file may declare functions
// without a body, as the manager_1_NN.go do with go:linkname.
