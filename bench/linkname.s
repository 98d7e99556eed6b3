// The declarations without a body in codec_test.go, which name functions of other
// packages, are accepted only in a package that has a file in assembly.
