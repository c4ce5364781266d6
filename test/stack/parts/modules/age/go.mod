module github.com/capi-talos/capi-talos/test/stack/parts/modules/age

go 1.26.0

tool filippo.io/age/cmd/age

require (
	filippo.io/age v1.3.1 // indirect
	filippo.io/edwards25519 v1.1.0 // indirect
	filippo.io/hpke v0.4.0 // indirect
	filippo.io/nistec v0.0.4 // indirect
	golang.org/x/crypto v0.45.0 // indirect
	golang.org/x/sys v0.38.0 // indirect
	golang.org/x/term v0.37.0 // indirect
)
