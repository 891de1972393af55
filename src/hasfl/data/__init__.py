"""Data sets, their files, their partition over devices, and the usual losses."""
