"""Places where files are: disks and object stores."""
