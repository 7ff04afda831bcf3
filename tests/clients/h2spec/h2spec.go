//go:build tools

// Package h2spec pins the conformance test of this name and what it is built from.
package h2spec

import _ "github.com/summerwind/h2spec/cmd/h2spec"
