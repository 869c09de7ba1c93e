"""RESP front end."""
