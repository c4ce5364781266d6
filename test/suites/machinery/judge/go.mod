module github.com/capi-talos/capi-talos/test/suites/machinery/judge

go 1.26.5
