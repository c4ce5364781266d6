module github.com/capi-talos/capi-talos/test/stack/parts/modules/preinit

go 1.26.5

require golang.org/x/sys v0.49.0
