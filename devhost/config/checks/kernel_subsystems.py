"""The subsystems of Linux: names of buses and classes in its sources, to find a misspelt one.

Modules from elsewhere add others, so a name that is not here is only likely to be wrong.
"""

from typing import Final

from devhost.hostfs.device_classes import ENUMERATED_NAMES, SAFE_CLASSES, DeviceClass
from devhost.model.spelling import nearest

# Linux 6.x: bus_type and class in drivers/, sound/, block/ and net/.
_BUSES: Final = """
ac97 acpi amba anybuss ap arm_ffa auxiliary bcma ccw ccwgroup cdx clockevents clocksource
container coreboot coresight counter cpu css cxl dax dfl dio edac eisa event_source faux firewire
fsi fsl-mc gameport gbphy gio greybus hdaudio hid host1x hsi i2c i3c ibmebus iio intel_th ipack isa
ishtp iscsi_flashnode iucv locomo-bus machinecheck macio maple mc-bus mcb mcp mdev mdio_bus media
mei memory memory_tiering memstick mhi mhi_ep mipi-dsi mmc mmc_rpmb moxtet nd node ntb
ntb_transport nvmem of_platform optee parisc parport pci pci-epf pci_express pcmcia peci
platform pnp ppp ps3_system_bus rapidio rbd rmi4 rpmsg sbus scmi_protocol scsi sdio sdw serial
serial-base serio siox slimbus snd_seq soc soundwire spi spmi ssb sunxi-rsb surface_aggregator tc
tee thunderbolt typec ulpi usb usb-serial vdpa vio virtio visorbus vlynq vmbus vme w1 wmi
workqueue xen xen-backend zorro
"""
_CLASSES: Final = """
accel ata_device ata_link ata_port backlight bcm2835-gpiomem bdi block bluetooth bsg bsr
c2port cec chromeos comedi cpuid cros_typec cuse dca devcoredump devfreq devfreq-event devlink
dm_crypt dma dma_heap dmi dpll drm drm_dp_aux_dev dvb enclosure extcon fabrics fc_host
fc_remote_ports fc_transport fc_vports firmware firmware-attributes fpga_bridge fpga_manager
fpga_region genwqe gnss gpib_common gpio graphics hidraw hwmon
i2c-adapter i2c-dev ieee80211 ieee802154 infiniband infiniband_cm infiniband_mad infiniband_verbs
input intel_pmt intel_scu_ipc iommu ipmi iscsi_connection iscsi_endpoint iscsi_host iscsi_iface
iscsi_session iscsi_transport kfd lcd leds lirc macvtap ipvtap mailbox mdio_bus mem memstick_host
misc mmc_host msr mtd mux nd net nfc nvme nvme-fabrics nvme-generic
nvme-subsystem ocxl pci_bus pci_epc pcmcia_socket phy pktcdvd pmsg power_supply powercap ppdev
pps printer ptp pvrusb2 pwm raid_devices raid_transport rapidio_port rc regulator remoteproc
reset rfkill rnbd-client rnbd-server rpmb rtc sas_device sas_end_device sas_expander sas_host
sas_phy sas_port scsi_changer scsi_device scsi_disk scsi_generic scsi_host scsi_tape sound
spi_host spi_master spi_slave spi_transport spidev srp_host srp_remote_ports stm stm_source
switchtec tape390 thermal tpm tpmrm tty typec typec_mux ubi uacce udc uio usb_power_delivery
usb_role usbmisc usbmon vas vc vchiq vduse vfio vfio-dev video4linux virtio-ports vtconsole
wakeup watchdog wwan xillybus xt_idletimer zram-control
"""
_OF_OTHERS: Final = "apex davinci_manager habanalabs hailo_chardev nvidia nvidia-uvm qdma xdma"
SUBSYSTEMS: Final = frozenset((*_BUSES.split(), *_CLASSES.split(), *_OF_OTHERS.split()))
# Those of all whose nodes need a right. Of a `tty`, `misc` or `mem` its name decides.
_REFUSED: Final = """
block bsg bsr chromeos comedi cpuid cxl dax dma_heap firewire genwqe gpib_common graphics hidraw
i2c-dev infiniband_mad input ipmi mei msr mtd nd ndctl nvme nvme-generic ocxl pktcdvd ppdev printer
ptp remoteproc rpmb rtc scsi_changer scsi_generic scsi_tape spidev stm switchtec tee tpm tpmrm ubi
uio usbmisc usbmon vas vc vchiq vduse virtio-ports watchdog xillybus
"""
_ALSO_CALLED: Final = {
    "audio": "sound",
    "camera": "video4linux",
    "gpu": "drm",
    "snd": "sound",
    "v4l": "video4linux",
    "v4l2": "video4linux",
    "vfio-pci": "vfio",
}
_DIGITS: Final = "0123456789"


def class_of_nodes(subsystem: str) -> DeviceClass | None:
    """Return the class of the nodes of a subsystem if they need a right, and that alone tells."""
    is_foreign = subsystem not in SUBSYSTEMS and subsystem not in SAFE_CLASSES
    is_named = subsystem in _REFUSED.split() or (is_foreign and not find_subsystem(subsystem))
    return DeviceClass(subsystem) if is_named else None


def find_subsystem(name: str) -> str:
    """Return the subsystem that a name of none is likely to stand for, or an empty string."""
    stem = name.rpartition("/")[2].rstrip(_DIGITS)
    for subsystem, nodes in ENUMERATED_NAMES.items():  # names of nodes
        if stem in {node.rpartition("/")[2].rstrip(_DIGITS) for node in nodes}:
            return subsystem
    return _ALSO_CALLED.get(name, "") or nearest(name, SUBSYSTEMS, 0.75)
