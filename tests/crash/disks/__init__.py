"""Real file systems on disks that record each write, lose their power, or fail.

`recorder` is a file system (FUSE) of one file, the image of a disk. Another file system is made in
it and mounted through a loop device, so the recorder sees what that one writes and flushes, in
order, for all processes, mapped pages included. `history` builds from this what the disk may hold
after a power loss at any moment. `outsider` does all this, in a mount namespace of its own; what
processes do with a store, and what must be there afterwards, is the concern of `crash.workload`.
"""
