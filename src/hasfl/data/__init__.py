"""Data sets, their partition over devices, and the order in which a device draws its samples."""
