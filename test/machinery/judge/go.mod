module github.com/capi-talos/capi-talos/test/machinery/judge

go 1.26.5
