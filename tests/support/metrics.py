"""The names of devhost's metrics, by which the chart's dashboard and rules go."""

from typing import Final

# The labels of each metric, beside those that Prometheus adds; histograms end in `_seconds`.
OF_A_RESOURCE: Final = {
    "devhost_allocation_duration_seconds": {"resource_name"},
    "devhost_allocations_total": {"resource_name", "result"},
    "devhost_devices": {"resource_name", "health"},
    "devhost_devices_expected": {"resource_name"},
    "devhost_devices_in_use": {"resource_name"},
    "devhost_devices_missing": {"resource_name"},
    "devhost_discovery_duration_seconds": {"resource_name"},
    "devhost_discovery_errors_total": {"resource_name"},
    "devhost_list_updates_total": {"resource_name"},
    "devhost_registered": {"resource_name"},
    "devhost_registrations_total": {"resource_name", "result"},
    "devhost_resource_state": {"resource_name", "state"},
    "devhost_streams": {"resource_name"},
}
OF_THE_HOST: Final = {
    "devhost_build_info": {"version", "python"},
    "devhost_cdi_spec_writes_total": set[str](),
    "devhost_config_hash_info": {"hash"},
    "devhost_config_last_reload_success_timestamp_seconds": set[str](),
    "devhost_config_last_reload_successful": set[str](),
    "devhost_config_reloads_total": {"result"},
    "devhost_kubelet_restarts_total": set[str](),
    "devhost_log_lines_dropped_total": set[str](),
    "devhost_uevent_overruns_total": set[str](),
}
# With --metrics-devices.
OF_HOLDERS: Final = {"devhost_device_allocated": {"resource_name", "device_id", "namespace", "pod"}}
# With --dra.
OF_CLAIMS: Final = {"devhost_dra_prepare_seconds": {"result"}}
METRICS: Final = OF_A_RESOURCE | OF_THE_HOST | OF_HOLDERS | OF_CLAIMS
HISTOGRAMS: Final = {
    "devhost_allocation_duration_seconds",
    "devhost_discovery_duration_seconds",
    "devhost_dra_prepare_seconds",
}
