//go:build tools

// Package h2spec pins the versions of the HTTP/2 conformance test h2spec and of the modules it is built from.
package h2spec

import _ "github.com/summerwind/h2spec/cmd/h2spec"
