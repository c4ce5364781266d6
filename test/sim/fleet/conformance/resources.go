package conformance

import (
	"fmt"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/siderolabs/talos/pkg/machinery/resources/block"
	"github.com/siderolabs/talos/pkg/machinery/resources/config"
	"github.com/siderolabs/talos/pkg/machinery/resources/etcd"
	"github.com/siderolabs/talos/pkg/machinery/resources/hardware"
	"github.com/siderolabs/talos/pkg/machinery/resources/k8s"
	"github.com/siderolabs/talos/pkg/machinery/resources/network"
	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"
	"github.com/siderolabs/talos/pkg/machinery/resources/secrets"
)

// read are the resources that our providers and their tests read, and an ID where
// one of them is read by it.
func read() []resource.Metadata {
	metadata := func(namespace resource.Namespace, kind resource.Type, id resource.ID) resource.Metadata {
		return resource.NewMetadata(namespace, kind, id, resource.VersionUndefined)
	}
	return []resource.Metadata{
		metadata(block.NamespaceName, block.DiskType, ""),
		metadata(block.NamespaceName, block.DiscoveredVolumeType, ""),
		metadata(block.NamespaceName, block.VolumeStatusType, "STATE"),
		metadata(config.NamespaceName, config.MachineConfigType, config.ActiveID),
		metadata(etcd.NamespaceName, etcd.SpecType, etcd.SpecID),
		metadata(hardware.NamespaceName, hardware.MemoryModuleType, ""),
		metadata(hardware.NamespaceName, hardware.ProcessorType, ""),
		metadata(hardware.NamespaceName, hardware.SystemInformationType, hardware.SystemInformationID),
		metadata(k8s.NamespaceName, k8s.NodeIPType, k8s.KubeletID),
		metadata(k8s.NamespaceName, k8s.StaticPodStatusType, ""),
		metadata(network.NamespaceName, network.AddressStatusType, ""),
		metadata(network.NamespaceName, network.HostnameStatusType, network.HostnameID),
		metadata(network.NamespaceName, network.LinkStatusType, ""),
		metadata(network.NamespaceName, network.NodeAddressType, network.NodeAddressRoutedID),
		metadata(runtime.NamespaceName, runtime.MachineStatusType, runtime.MachineStatusID),
		metadata(runtime.NamespaceName, runtime.PlatformMetadataType, runtime.PlatformMetadataID),
		metadata(secrets.NamespaceName, secrets.OSRootType, secrets.OSRootID),
	}
}

// resourceRows read and write resources.
func resourceRows() []Row {
	const service = "/cosi.resource.State/"
	var rows []Row
	for _, res := range read() {
		kind := map[string]any{"namespace": res.Namespace(), "type": res.Type()}
		rows = append(rows,
			Row{Method: service + "List", Variant: res.Type(), Request: object(kind)},
			Row{Method: service + "Get", Variant: res.Type() + " of an ID that is none", Request: object(map[string]any{
				"namespace": res.Namespace(), "type": res.Type(), "id": nothing,
			})},
			Row{Method: service + "Watch", Variant: res.Type(), Request: object(map[string]any{
				"namespace": res.Namespace(), "type": res.Type(), "options": map[string]any{"bootstrapContents": true}, "apiVersion": 1,
			})},
		)
		if res.ID() != "" {
			rows = append(rows, Row{Method: service + "Get", Variant: res.Type(), Request: object(map[string]any{
				"namespace": res.Namespace(), "type": res.Type(), "id": res.ID(),
			})})
		}
	}
	resource := fmt.Sprintf(`{"metadata": {"namespace": %q, "type": %q, "id": %q, "version": "1", "phase": "running", "created": "2026-01-01T00:00:00Z", "updated": "2026-01-01T00:00:00Z"}, "spec": {"yamlSpec": "{}"}}`,
		runtime.NamespaceName, runtime.MachineStatusType, runtime.MachineStatusID)
	return append(rows,
		Row{Method: service + "List", Variant: "of a type that is none", Request: `{"namespace": "runtime", "type": "Nothings.runtime.talos.dev"}`},
		Row{Method: service + "Get", Variant: "of a type that is none", Request: `{"namespace": "runtime", "type": "Nothings.runtime.talos.dev", "id": "nothing"}`},
		Row{Method: service + "List", Variant: "of a namespace that is none", Request: object(map[string]any{"namespace": nothing, "type": runtime.MachineStatusType})},
		Row{Method: service + "Create", Request: `{"resource": ` + resource + `, "options": {}}`},
		Row{Method: service + "Update", Request: `{"newResource": ` + resource + `, "options": {}}`},
		Row{Method: service + "Destroy", Request: object(map[string]any{"namespace": runtime.NamespaceName, "type": runtime.MachineStatusType, "id": runtime.MachineStatusID, "options": map[string]any{}})},
	)
}
