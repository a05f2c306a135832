"""Names of the classes of USB and PCI devices, as the beginnings of their numbers."""

# From usb.ids and pci.ids.

from typing import Final

USB_CLASSES: Final = {
    "audio": "01",
    "cdc": "02",
    "hid": "03",
    "physical": "05",
    "image": "06",
    "printer": "07",
    "storage": "08",
    "hub": "09",
    "cdcdata": "0a",
    "smartcard": "0b",
    "video": "0e",
    "wireless": "e0",
    "misc": "ef",
    "application": "fe",
    "vendor": "ff",
}
PCI_CLASSES: Final = {
    "storage": "01",
    "nvme": "010802",
    "sata": "0106",
    "network": "02",
    "ethernet": "0200",
    "infiniband": "0207",
    "display": "03",
    "vga": "0300",
    "3d": "0302",
    "multimedia": "04",
    "audio": "0403",
    "bridge": "06",
    "serial": "0700",
    "usb": "0c03",
    "wireless": "0d",
    "crypto": "10",
    "accelerator": "12",
}
